#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test: the release build (with the trainer and the
# live fleets), RDMA in the Soft-RoCE machines, then AddressSanitizer, ThreadSanitizer and a short
# run of every fuzzer.
#
#   scripts/test.sh            all of it
#   scripts/test.sh release    one part: release, rdma, asan, tsan or fuzz
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "$0"
}

build_preset() {
  local preset=$1
  echo "== ${preset}: configure and build"
  cmake --preset "${preset}" >"build/${preset}-configure.log" 2>&1 ||
    { cat "build/${preset}-configure.log"; exit 1; }
  cmake --build --preset "${preset}" -- -v 2>&1 >"build/${preset}-build.log" ||
    { grep -E -A12 'FAILED|error' "build/${preset}-build.log" | head -n 80; exit 1; }
}

run_preset() {
  local preset=$1
  build_preset "${preset}"
  echo "== ${preset}: test"
  ctest --preset "${preset}" --no-tests=error
  # Each transport's share of the conformance suite; ctest keeps the output of tests that pass.
  sed -n 's/^transport conformance over /== conformance over /p' \
    "build/${preset}/Testing/Temporary/LastTest.log"
}

# What was not tested, and why.
skipped=()

# Real verbs on a virtual device: the tests with the label rdma, fleets of the trainer, and faults
# between two machines.
run_rdma() {
  local reason
  if ! reason=$(scripts/soft_roce prepare 2>&1); then
    skipped+=("rdma (${reason})")
    echo "== rdma: skipped: ${reason}"
    return
  fi
  build_preset release
  mkdir -p build/release/Testing
  echo "== rdma: one machine: conformance, BSP and SSP training"
  scripts/soft_roce --results build/soft_roce/one --timeout 900s -- bash tests/rdma/one_machine.sh
  echo "== rdma: two machines: loss, a cut link, a death"
  scripts/soft_roce --machines 2 --results build/soft_roce/two --timeout 900s \
    --cut-after cut --cut-for 15s --kill-after kill \
    --second 'python3 tests/rdma/remote.py serve 2200' -- \
    python3 -B tests/rdma/two_machines_test.py
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

parts=(release rdma asan tsan fuzz)
if [[ $# -gt 0 ]]; then
  case $1 in
    release | rdma | asan | tsan | fuzz) parts=("$1") ;;
    -h | --help) usage; exit 0 ;;
    *) echo "scripts/test.sh: unknown part '$1': expected release, rdma, asan, tsan or fuzz" >&2; exit 2 ;;
  esac
fi

mkdir -p build
./scripts/setup.sh
# The fuzzers go first so that ctest's own closing line is the last thing that is read.
for part in "${parts[@]}"; do
  case ${part} in
    fuzz | rdma) "run_${part}" ;;
    *) run_preset "${part}" ;;
  esac
done
echo "== all passed: ${parts[*]}; skipped: ${#skipped[@]}"
[[ ${#skipped[@]} -eq 0 ]] || printf '   skipped %s\n' "${skipped[@]}"
