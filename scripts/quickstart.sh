#!/usr/bin/env bash
# From a fresh machine to a trained language model: installs what is missing, builds, prepares six
# novels by Jane Austen, trains a small gpt with two servers and two workers (SSP, staleness 3) for
# a few minutes, and lets it write.
#
#   scripts/quickstart.sh                    results in runs/quickstart
#   scripts/quickstart.sh --steps=200 ...    more flags for the workers
set -euo pipefail
cd "$(dirname "$0")/.."

readonly run_dir=runs/quickstart
readonly bin=build/release/bin

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0"
  exit 0
fi

say() {
  echo "== $*"
}

# Runs a command with its output in a log, which is shown only if it fails.
quietly() {
  local log=$1
  shift
  "$@" >"${log}" 2>&1 || { tail -n 40 "${log}" >&2; exit 1; }
}

say "installing what is missing"
./scripts/setup.sh

say "building (the first time takes a few minutes)"
mkdir -p build
quietly build/quickstart-configure.log cmake --preset release
quietly build/quickstart-build.log cmake --build --preset release --target \
  slackline-coordinator slackline-server slackline-worker slackline-merge

say "preparing the text"
if ./scripts/prepare_data --check data/text >/dev/null 2>&1; then
  echo "data/text is there"
else
  ./scripts/prepare_data --default-text
fi

say "training; ${run_dir} gets logs, metrics and checkpoints"
began=${SECONDS}
./scripts/fleet run --servers 2 --workers 2 --staleness 3 --overwrite \
  --run-dir "${run_dir}" -- \
  --model=gpt --data=data/text --layers=4 --heads=4 --width=96 --context=64 --batch=8 \
  --steps=4000 --optimizer=adamw --learning_rate=0.005 --beta2=0.99 --weight_decay=0.1 \
  --schedule=cosine --warmup_steps=100 --final_fraction=0.05 --chunk_bytes=262144 --codec=fp16 "$@"

say "trained in $((SECONDS - began)) s; merging the checkpoint into one file"
"${bin}/slackline-merge" --checkpoint "${run_dir}/checkpoints" --output "${run_dir}/model.safetensors"

say "the model writes"
"${bin}/slackline-worker" --mode=generate --checkpoint="${run_dir}/model.safetensors" \
  --prompt="It is a truth universally acknowledged, that " --tokens=500 --temperature=0.6 \
  --minloglevel=1
