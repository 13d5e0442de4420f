#!/bin/bash
# Measures figures and keeps their JSON in target/bench, for the report. Nothing but JSON goes to standard output.
#
#   run.sh "NAME..." [ARGUMENTS...]      each with the same arguments, the last failure's status at the end
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
        # What failed is shown, and not kept.
        cat "$kept/$name.part"
        rm "$kept/$name.part"
    fi
done
exit $status
