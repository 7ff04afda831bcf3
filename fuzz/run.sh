#!/bin/sh
# Runs one target under libFuzzer at low priority: fuzz/run.sh TARGET [SECONDS]. See README.md.
# Inputs that reach new code are written to fuzz/coverage/TARGET, which is not committed; failing inputs to fuzz/artifacts/TARGET.
set -eu
cd "$(dirname "$0")/.."
target=$1
seconds=${2:-180}
mkdir -p "fuzz/coverage/$target"
# A binary with coverage instrumentation does not link if link-time optimisation is on.
export CARGO_PROFILE_RELEASE_LTO=off
exec nice -n 19 cargo +nightly fuzz run --features libfuzzer "$target" \
    "fuzz/coverage/$target" "fuzz/corpus/$target" -- -max_total_time="$seconds" -timeout=10
