#!/usr/bin/env bash
# Installs what Slackline needs to be built, tested and run on Debian 12. Run it as often as you
# like: it installs only what is missing, and says nothing but that all is there otherwise.
#
#   scripts/setup.sh           as root, or as a user who may use sudo
set -euo pipefail

readonly packages=(
  # Building.
  build-essential cmake ninja-build ccache pkg-config protobuf-compiler
  # Libraries: sockets, messages, flags, logs, SIMD, errors, checksums, JSON.
  libboost1.81-dev libprotobuf-dev libgflags-dev libgoogle-glog-dev libhwy-dev libexpected-dev
  libxxhash-dev nlohmann-json3-dev zlib1g-dev
  # RDMA: verbs and the drivers behind them.
  rdma-core libibverbs-dev ibverbs-providers
  # The trainer's tensors and their BLAS.
  libtorch-dev libopenblas0-pthread
  # Tests, fuzzing, benchmarks, checks.
  libgtest-dev libgmock-dev libbenchmark-dev clang clang-format libclang-rt-14-dev iperf3
  # Scripts.
  python3 openssh-client
  # RDMA without a NIC (scripts/soft_roce), and its peers.
  qemu-system-x86 busybox-static iproute2 ibverbs-utils perftest
)
# Packages that scripts/prepare_data unpacks without installing them: apt must know them.
readonly data_packages=(r-cran-janeaustenr python3-sklearn)

fail() {
  echo "scripts/setup.sh: $*" >&2
  exit 1
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,5s/^# \{0,1\}//p' "$0"
  exit 0
fi
[[ $# -eq 0 ]] || fail "no arguments are known, found '$1'"
command -v apt-get >/dev/null || fail "expected Debian 12, found a system without apt-get"

as_root=()
if [[ ${EUID} -ne 0 ]]; then
  as_root=(sudo)
fi

# The packages among the arguments whose names are not in the first one, a list of a name a line.
without() {
  local known=$1 package
  shift
  for package in "$@"; do
    grep -qxF "${package}" <<<"${known}" || echo "${package}"
  done
}
installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null |
  sed -n 's/ installed$//p' || true)
mapfile -t missing < <(without "${installed}" "${packages[@]}")
available=$(apt-cache show --no-all-versions "${data_packages[@]}" 2>/dev/null |
  sed -n 's/^Package: //p' || true)
mapfile -t unknown < <(without "${available}" "${data_packages[@]}")

if [[ ${#missing[@]} -eq 0 && ${#unknown[@]} -eq 0 ]]; then
  echo "scripts/setup.sh: everything is installed"
  exit 0
fi
if [[ ${EUID} -ne 0 ]]; then
  command -v sudo >/dev/null || fail "missing packages: ${missing[*]} ${unknown[*]}; install them as root"
fi

log=$(mktemp)
trap 'rm -f "${log}"' EXIT
# Quiet unless it fails. Waits for another apt that holds the lock.
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >"${log}" 2>&1 ||
    { tail -n 30 "${log}" >&2; fail "apt-get $1 failed; its last lines are above"; }
}

echo "scripts/setup.sh: reading the package lists"
apt update
if [[ ${#missing[@]} -gt 0 ]]; then
  echo "scripts/setup.sh: installing ${missing[*]}"
  apt install --no-install-recommends "${missing[@]}"
fi
echo "scripts/setup.sh: done"
