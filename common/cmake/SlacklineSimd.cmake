# slackline_simd_sources(a.cc ...): sources that Highway compiles once per SIMD target.
#
# Of x86 processors we serve those with AVX-512, AVX2 and SSE4, and plain C++ below that; leaving
# out the targets in between keeps the compilation short.
function(slackline_simd_sources)
  set_source_files_properties(${ARGN} PROPERTIES
    COMPILE_DEFINITIONS "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_AVX3_DL)")
endfunction()
