# SPDX-License-Identifier: MIT
# The three targets. They carry include directories, a language level and libraries: no options, no definitions.
#   gated_attention::gated_attention   the headers, Eigen, OpenMP where it is found
#   gated_attention::serial            the same headers without OpenMP
#   gated_attention::io                gated_attention::gated_attention and nlohmann_json, for the rooms io and model
set(gated_attention_include ${PROJECT_SOURCE_DIR}/include)
file(GLOB_RECURSE gated_attention_headers CONFIGURE_DEPENDS ${gated_attention_include}/*.hpp)
set(gated_attention_io_headers ${gated_attention_headers})
list(FILTER gated_attention_io_headers INCLUDE REGEX "/include/gated_attention/(io|model)/")
if(gated_attention_io_headers)
  list(REMOVE_ITEM gated_attention_headers ${gated_attention_io_headers})
endif()

add_library(gated_attention INTERFACE)
add_library(gated_attention::gated_attention ALIAS gated_attention)
target_compile_features(gated_attention INTERFACE cxx_std_20)
target_sources(
  gated_attention
  INTERFACE FILE_SET HEADERS BASE_DIRS ${gated_attention_include} FILES ${gated_attention_headers})
target_link_libraries(gated_attention INTERFACE Eigen3::Eigen)

add_library(gated_attention_serial INTERFACE)
add_library(gated_attention::serial ALIAS gated_attention_serial)
target_compile_features(gated_attention_serial INTERFACE cxx_std_20)
target_include_directories(
  gated_attention_serial INTERFACE $<BUILD_INTERFACE:${gated_attention_include}>
                                   $<INSTALL_INTERFACE:include>)
target_link_libraries(gated_attention_serial INTERFACE Eigen3::Eigen)
set_target_properties(gated_attention_serial PROPERTIES EXPORT_NAME serial)

set(gated_attention_links_openmp FALSE)
if(TARGET OpenMP::OpenMP_CXX)
  set(gated_attention_links_openmp TRUE)
  target_link_libraries(gated_attention INTERFACE OpenMP::OpenMP_CXX)
endif()

if(TARGET nlohmann_json::nlohmann_json)
  add_library(gated_attention_io INTERFACE)
  add_library(gated_attention::io ALIAS gated_attention_io)
  target_sources(
    gated_attention_io INTERFACE FILE_SET HEADERS BASE_DIRS ${gated_attention_include} FILES
                                 ${gated_attention_io_headers})
  target_link_libraries(gated_attention_io INTERFACE gated_attention nlohmann_json::nlohmann_json)
  set_target_properties(gated_attention_io PROPERTIES EXPORT_NAME io)
endif()

# all_verify_interface_header_sets compiles every header by itself.
if(PROJECT_IS_TOP_LEVEL)
  set_target_properties(gated_attention PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  if(TARGET gated_attention_io)
    set_target_properties(gated_attention_io PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
endif()
