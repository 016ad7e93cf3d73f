// How a fuzz target states what must hold: libFuzzer and the replay both see an abort as a defect.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace slackline::testing {

inline void FuzzExpect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz target: broken: %s\n", what);
  std::abort();
}

}  // namespace slackline::testing
