#!/bin/bash
# What scripts/test.sh rdma runs in the single Soft-RoCE machine.
build=${SLACKLINE_BUILD:-build/release}
code=0
# The tree is read-only here, and ctest writes its log into it.
mount -t tmpfs tmpfs "${build}/Testing"
ctest --test-dir "${build}" -L rdma --output-on-failure --no-tests=error || code=1
python3 -B tests/rdma/one_machine_test.py || code=1
exit "${code}"
