#!/bin/bash
# Measures figures and keeps their JSON in target/bench, for the report. Only JSON goes to standard output.
#
#   run.sh "NAME..." [ARGUMENTS...]      runs each with the same arguments; exits with the status of the last that failed
set -euo pipefail
cd "$(dirname "$0")/../.."

names=$1
shift
kept=target/bench
mkdir -p $kept
status=0
for name in $names; do
    if cargo run --release --quiet --package pinion-bench -- "$name" --json "$@" >"$kept/$name.part"; then
        cat "$kept/$name.part"
        mv "$kept/$name.part" "$kept/$name.json"
    else
        status=$?
        # The output of a failed run is shown and not kept.
        cat "$kept/$name.part"
        rm "$kept/$name.part"
    fi
done
exit $status
