# How every target of this project is built: one language level, one set of warnings, one place for
# programs. Folders list their sources; nothing is globbed.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
find_program(SLACKLINE_CCACHE ccache)
if(SLACKLINE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLACKLINE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${SLACKLINE_CCACHE})
endif()

find_package(Threads REQUIRED)

# slackline_flags(target): the warnings of our own code, as errors, and the include root. Without
# -ffp-contract=off the compiler fuses multiplications with additions where the processor can, and
# the same job would give other bits on other processors.
function(slackline_flags target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Werror -ffp-contract=off)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Holds the code to the annotations of common/thread_annotations.h; GCC has no such analysis.
    target_compile_options(${target} PRIVATE -Wthread-safety)
  endif()
endfunction()

# slackline_library(name SOURCES a.cc ... [PUBLIC libs] [PRIVATE libs])
# makes target slackline_NAME with alias slackline::NAME.
function(slackline_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(slackline_${name} STATIC ${ARG_SOURCES})
  add_library(slackline::${name} ALIAS slackline_${name})
  slackline_flags(slackline_${name})
  target_link_libraries(slackline_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# slackline_program(name SOURCES a.cc ... LIBS libs): a program in build/<preset>/bin.
function(slackline_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  slackline_flags(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
endfunction()

# slackline_test(name SOURCES a_test.cc ... LIBS libs [TIMEOUT seconds]): a GoogleTest binary, one
# CTest entry a binary (the binaries are many and quick; a case is named by GoogleTest's own filter).
function(slackline_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)  # Ends a hang; a test takes seconds, minutes under a sanitizer on a busy machine.
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if(CMAKE_CXX_FLAGS MATCHES "fsanitize=thread")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/testing/tsan_suppressions.cc)
  endif()
  slackline_flags(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# slackline_fuzz(name SOURCES a_fuzz.cc ... LIBS libs CORPUS directory): a libFuzzer target. Under
# SLACKLINE_FUZZ (clang) a program in build/<preset>/fuzz that explores from the corpus:
#   build/fuzz/fuzz/NAME -max_total_time=60 SCRATCH_DIRECTORY tests/FOLDER/corpus/NAME
# Otherwise a test that replays the corpus.
function(slackline_fuzz name)
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  slackline_flags(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  if(SLACKLINE_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    return()
  endif()
  target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/testing/fuzz_replay_main.cc)
  target_link_libraries(${name} PRIVATE slackline::common)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_CORPUS})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120)
endfunction()
