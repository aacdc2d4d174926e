# SPDX-License-Identifier: MIT
# Compiles SOURCE with COMPILER as far as its errors and holds the outcome against what the file says of itself:
#
#   // expect: <text>      must not compile: exactly one error, at most 20 lines of diagnostics, and this text in
#                          them (may be written several times: all of them)
#   // expect: success     must compile without a word: the correct neighbour of a misuse
#   // flags: <flags>      further flags for the compiler
cmake_minimum_required(VERSION 3.25)

# file(STRINGS) and lists break at semicolons and brackets, which messages may contain: single lines are cut out.
file(READ ${SOURCE} rest)
set(expected_count 0)
set(flags "")
while(rest MATCHES "(^|\n)// (expect|flags): ([^\n]*)")
  set(kind "${CMAKE_MATCH_2}")
  set(text "${CMAKE_MATCH_3}")
  string(LENGTH "${CMAKE_MATCH_0}" length)
  string(FIND "${rest}" "${CMAKE_MATCH_0}" at)
  math(EXPR at "${at} + ${length}")
  string(SUBSTRING "${rest}" ${at} -1 rest)
  string(STRIP "${text}" text)
  if(kind STREQUAL "flags")
    separate_arguments(more UNIX_COMMAND "${text}")
    list(APPEND flags ${more})
  else()
    set(expected_${expected_count} "${text}")
    math(EXPR expected_count "${expected_count} + 1")
  endif()
endwhile()
if(expected_count EQUAL 0)
  message(FATAL_ERROR "${SOURCE} has no line '// expect: <text>'")
endif()

set(system_flags "")
foreach(directory IN LISTS SYSTEM)
  list(APPEND system_flags -isystem ${directory})
endforeach()
set(command ${COMPILER} -std=c++20 -fsyntax-only -Wall -Wextra -I${INCLUDE} ${system_flags} ${flags}
            ${SOURCE})
set(ENV{LC_ALL} C.UTF-8)
execute_process(COMMAND ${command} RESULT_VARIABLE result OUTPUT_VARIABLE diagnostics
                ERROR_VARIABLE diagnostics)
string(JOIN " " command ${command})
message("${command}\n${diagnostics}")

if(expected_0 STREQUAL "success")
  if(NOT result EQUAL 0 OR NOT diagnostics STREQUAL "")
    message(FATAL_ERROR "must compile without a diagnostic")
  endif()
  return()
endif()

if(result EQUAL 0)
  message(FATAL_ERROR "compiles, and must not")
endif()
string(REGEX MATCHALL "error:" errors "${diagnostics}")
list(LENGTH errors error_count)
if(NOT error_count EQUAL 1)
  message(FATAL_ERROR "${error_count} errors, not one")
endif()
string(REGEX REPLACE "[^\n]" "" lines "${diagnostics}")
string(LENGTH "${lines}" line_count)
if(line_count GREATER 20)
  message(FATAL_ERROR "${line_count} lines of diagnostics, 20 are allowed")
endif()
string(REPLACE "\\\"" "\"" diagnostics "${diagnostics}")  # clang++ 14 prints a message as it is written
math(EXPR last "${expected_count} - 1")
foreach(i RANGE ${last})
  string(FIND "${diagnostics}" "${expected_${i}}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "the diagnostics lack '${expected_${i}}'")
  endif()
endforeach()
