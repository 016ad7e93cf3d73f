#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test: the release build (with the trainer and the
# live fleets), then AddressSanitizer, ThreadSanitizer and a short run of every fuzzer.
#
#   scripts/test.sh            all of it
#   scripts/test.sh release    one part: release, asan, tsan or fuzz
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  sed -n '2,6s/^# \{0,1\}//p' "$0"
}

run_preset() {
  local preset=$1
  echo "== ${preset}: configure and build"
  cmake --preset "${preset}" >"build/${preset}-configure.log" 2>&1 ||
    { cat "build/${preset}-configure.log"; exit 1; }
  cmake --build --preset "${preset}" -- -v 2>&1 >"build/${preset}-build.log" ||
    { grep -E -A12 'FAILED|error' "build/${preset}-build.log" | head -n 80; exit 1; }
  echo "== ${preset}: test"
  ctest --preset "${preset}" --no-tests=error
  # Each transport's share of the conformance suite; ctest keeps the output of tests that pass.
  sed -n 's/^transport conformance over /== conformance over /p' \
    "build/${preset}/Testing/Temporary/LastTest.log"
}

# Seconds that each fuzzer explores beyond its committed corpus.
readonly fuzz_seconds=${SLACKLINE_FUZZ_SECONDS:-10}

run_fuzz() {
  echo "== fuzz: configure and build"
  cmake --preset fuzz >build/fuzz-configure.log 2>&1 || { cat build/fuzz-configure.log; exit 1; }
  cmake --build --preset fuzz >build/fuzz-build.log 2>&1 ||
    { grep -E -A12 'FAILED|error' build/fuzz-build.log | head -n 80; exit 1; }
  local fuzzer name
  for fuzzer in build/fuzz/fuzz/*_fuzz; do
    name=$(basename "${fuzzer}")
    echo "== fuzz: ${name} for ${fuzz_seconds} s"
    mkdir -p "build/fuzz/corpus/${name}"
    "${fuzzer}" -max_total_time="${fuzz_seconds}" -rss_limit_mb=4096 -print_final_stats=0 \
      "build/fuzz/corpus/${name}" tests/*/corpus/"${name}" >"build/fuzz/${name}.log" 2>&1 ||
      { tail -n 40 "build/fuzz/${name}.log"; exit 1; }
    tail -n 1 "build/fuzz/${name}.log"
  done
}

parts=(release asan tsan fuzz)
if [[ $# -gt 0 ]]; then
  case $1 in
    release | asan | tsan | fuzz) parts=("$1") ;;
    -h | --help) usage; exit 0 ;;
    *) echo "scripts/test.sh: unknown part '$1': expected release, asan, tsan or fuzz" >&2; exit 2 ;;
  esac
fi

mkdir -p build
./scripts/setup.sh
# The fuzzers go first so that ctest's own closing line is the last thing that is read.
for part in "${parts[@]}"; do
  if [[ ${part} == fuzz ]]; then run_fuzz; else run_preset "${part}"; fi
done
echo "== all passed: ${parts[*]}"
