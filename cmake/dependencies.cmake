# SPDX-License-Identifier: MIT
# Dependencies: what is installed is taken; a download happens only with GATED_ATTENTION_FETCH_DEPS.

# gated_attention_require(<package> [version] TARGET <target> APT <Debian package>
#                         [URL <archive> SHA256 <hash> [HEADERS <folder of the archive>]])
# Afterwards <target> exists, or the configuration has ended with the name of the package to install.
macro(gated_attention_require package)
  cmake_parse_arguments(require "" "TARGET;APT;URL;SHA256;HEADERS" "" ${ARGN})
  if(NOT TARGET ${require_TARGET})
    find_package(${package} ${require_UNPARSED_ARGUMENTS} QUIET)
  endif()
  if(NOT TARGET ${require_TARGET} AND GATED_ATTENTION_FETCH_DEPS AND require_URL)
    gated_attention_fetch(${package} ${require_TARGET} ${require_URL} ${require_SHA256}
                          "${require_HEADERS}")
  endif()
  if(NOT TARGET ${require_TARGET})
    string(JOIN " " require_wanted ${package} ${require_UNPARSED_ARGUMENTS})
    set(require_advice "install it (Debian, Ubuntu: apt-get install ${require_APT})")
    if(require_URL)
      string(APPEND require_advice
             ", or configure with -DGATED_ATTENTION_FETCH_DEPS=ON to download it")
    endif()
    message(FATAL_ERROR "gated_attention needs ${require_wanted}, which was not found: ${require_advice}")
  endif()
endmacro()

# Downloads a pinned archive. Of a header-only package only the headers are used, as system headers; its own
# build, with the options it would leave in the cache, is not entered.
function(gated_attention_fetch package target url sha256 headers)
  include(FetchContent)
  set(name gated_attention_${package})
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP ON)
  FetchContent_Populate(${name})
  string(TOLOWER ${name} name)
  if(headers)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE ${${name}_SOURCE_DIR}/${headers})
  else()
    set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
    set(INSTALL_GTEST OFF)
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    set(BENCHMARK_ENABLE_WERROR OFF)
    add_subdirectory(${${name}_SOURCE_DIR} ${${name}_BINARY_DIR} EXCLUDE_FROM_ALL SYSTEM)
  endif()
endfunction()

gated_attention_require(
  Eigen3 3.4 TARGET Eigen3::Eigen APT libeigen3-dev HEADERS .
  URL https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz
  SHA256 8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72)

if(NOT TARGET OpenMP::OpenMP_CXX)
  find_package(OpenMP QUIET COMPONENTS CXX)
endif()

# Optional for the library, which then lacks gated_attention::io; tests and examples need it.
if(GATED_ATTENTION_BUILD_TESTS OR GATED_ATTENTION_BUILD_EXAMPLES OR GATED_ATTENTION_FETCH_DEPS)
  gated_attention_require(
    nlohmann_json 3.10 TARGET nlohmann_json::nlohmann_json APT nlohmann-json3-dev HEADERS include
    URL https://github.com/nlohmann/json/releases/download/v3.11.2/json.tar.xz
    SHA256 8c4b26bf4b422252e13f332bc5e388ec0ab5c3443d24399acb675e68278d341f)
elseif(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.10 QUIET)
endif()
