# SPDX-License-Identifier: MIT
# Configures, builds and runs the project CONSUMER as somebody else's, offline.
# Given: CONSUMER, ROOT, BUILD (of the library), WORK, COMPILER, GENERATOR.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
set(arguments "")

if(CONSUMER STREQUAL "find_package")
  # Installed in one place, moved to another: nothing in the package knows where it was made.
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/staged)
  file(RENAME ${WORK}/staged ${WORK}/prefix)
  file(GLOB_RECURSE files ${WORK}/prefix/share/*)
  foreach(file IN LISTS files)
    file(READ ${file} text)
    foreach(place ${ROOT} ${BUILD} ${WORK})
      string(FIND "${text}" "${place}" at)
      if(NOT at EQUAL -1)
        message(FATAL_ERROR "${file} names ${place}")
      endif()
    endforeach()
  endforeach()
  list(APPEND arguments -D CMAKE_PREFIX_PATH=${WORK}/prefix)
elseif(CONSUMER STREQUAL "fetch_content")
  execute_process(COMMAND ${CMAKE_COMMAND} -E tar czf ${WORK}/gated_attention.tar.gz CMakeLists.txt cmake
                          include WORKING_DIRECTORY ${ROOT} COMMAND_ERROR_IS_FATAL ANY)
  file(SHA256 ${WORK}/gated_attention.tar.gz hash)
  list(APPEND arguments -D ARCHIVE=${WORK}/gated_attention.tar.gz -D ARCHIVE_SHA256=${hash})
else()
  list(APPEND arguments -D GATED_ATTENTION_ROOT=${ROOT})
endif()

if(CONSUMER STREQUAL "missing_dependency")
  # Without Eigen the configuration ends with the package to install, and nothing is downloaded.
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/add_subdirectory -B ${WORK}/build -G ${GENERATOR}
            -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON ${arguments}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(result EQUAL 0 OR NOT output MATCHES "apt-get install libeigen3-dev")
    message(FATAL_ERROR "expected an error that names libeigen3-dev: ${output}")
  endif()
  return()
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/${CONSUMER} -B ${WORK}/build -G ${GENERATOR}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Release ${arguments})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
if(CONSUMER STREQUAL "find_package")
  run(${WORK}/build/consumer_serial)
endif()
