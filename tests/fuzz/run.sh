#!/bin/bash
# Builds the fuzz targets with the coverage instrumentation that stable Rust has, and runs each for so many seconds, or one
# of them on one input.
#
#   run.sh SECONDS [TARGET]
#   run.sh --input FILE TARGET
#
# The inputs that a run has found stay in target/fuzz/corpus, where the next run continues.
set -euo pipefail
cd "$(dirname "$0")/../.."

targets=(headers descriptors calls models)
# The longest input of each, in bytes.
declare -A len_max=([headers]=400 [descriptors]=600 [calls]=600 [models]=1200)

usage() {
    sed -n 's/^#   /usage: /p' "$0" >&2
    exit 2
}
input=
if [ "${1:-}" = --input ]; then
    [ $# = 3 ] && [ -f "$2" ] || usage
    input=$2 targets=("$3")
else
    seconds=${1:-}
    [[ $seconds =~ ^[1-9][0-9]*$ ]] && [ $# -le 2 ] || usage
    [ -z "${2:-}" ] || targets=("$2")
fi
for target in "${targets[@]}"; do
    [ -n "${len_max[$target]:-}" ] || usage
done

# The flags of `cargo fuzz --sanitizer none`. They are for the targets and their dependencies, not for build scripts, which is why the build
# names a target.
host=$(rustc -vV | sed -n 's/^host: //p')
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0)
folder=${CARGO_TARGET_DIR:-target}/fuzz
RUSTFLAGS="${flags[*]}" cargo build --quiet --locked --profile fuzz --target "$host" --target-dir "$folder" \
    --package pinion-fuzz --features engine --bins
program() { echo "$folder/$host/fuzz/$1"; }

if [ -n "$input" ]; then
    exec "$(program "${targets[0]}")" "$input"
fi

for target in "${targets[@]}"; do
    corpus=$folder/corpus/$target crashes=$folder/crashes/$target log=$folder/$target.log
    mkdir -p "$corpus" "$crashes"
    echo "fuzz: $target, $seconds s"
    if ! "$(program "$target")" -max_total_time="$seconds" -max_len="${len_max[$target]}" -timeout=10 \
        -rss_limit_mb=2048 -artifact_prefix="$crashes/" -print_final_stats=1 "$corpus" "tests/fuzz/seeds/$target" \
        >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        crash=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        echo "fuzz: $target does not hold" >&2
        if [ -n "$crash" ]; then
            echo "fuzz: the input, in base64: $(base64 --wrap=0 "$crash")" >&2
            echo "fuzz: again: make fuzz TARGET=$target INPUT=$crash" >&2
        fi
        exit 1
    fi
    grep -E '^(#[0-9]+[[:space:]]+DONE|stat::(number_of_executed_units|average_exec_per_sec|new_units_added))' "$log"
done
