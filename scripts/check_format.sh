#!/usr/bin/env bash
# Checks that every C++ file is as clang-format 14 writes it.
#
#   scripts/check_format.sh          names the files and lines that differ; exit code 1 if any do
#   scripts/check_format.sh --fix    rewrites them
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  '') mode=(--dry-run -Werror) ;;
  --fix) mode=(-i) ;;
  *) echo "scripts/check_format.sh: unknown option '$1': expected --fix or nothing" >&2; exit 2 ;;
esac

# Debian's name for the release that the layout is pinned to; other releases differ in details.
tool=clang-format-14
command -v "${tool}" >/dev/null || tool=clang-format
command -v "${tool}" >/dev/null || { echo "check_format: clang-format is missing" >&2; exit 1; }

# Tracked files and new ones that are not ignored, less those deleted but not yet committed.
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' |
  while IFS= read -r -d '' file; do [[ -e ${file} ]] && printf '%s\0' "${file}"; done |
  xargs -0 -r "${tool}" "${mode[@]}" --style=file
