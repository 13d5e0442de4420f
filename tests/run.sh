#!/bin/bash
# Builds all tests and runs them, some programs side by side: most wait for networks and nodes more than they compute. What a program has
# printed is shown once it has ended, and those that failed again at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

# Programs that run before all others, alone: they count instructions of programs that run nothing else meanwhile.
alone=(gate)
# Programs of which only one runs at a time: their tour has one name for all.
in_turn=(book tour)
# Programs that take longest, and therefore begin first.
long=(http_server command_line control_plane bad_network c_guests dev middlebox_chains differential library go_guests tenant isolation chains)
# No program takes half as long, even beside others.
limit_s=1200

folder=$(mktemp --directory --tmpdir pinion-run.XXXXXX)
trap 'rm -rf "$folder"' EXIT
export folder limit_s
export in_turn_names=" ${in_turn[*]} "

# run PACKAGE KIND NAME PROGRAM DIRECTORY: runs one program, or the examples of documentation, and prints what it said.
run() {
    local package=$1 kind=$2 name=$3 program=$4 directory=$5
    local log=$folder/$kind-$name-$BASHPID select lock=/dev/null start=$SECONDS
    case $kind in
    test) select="--test $name" ;;
    bin) select="--bin $name" ;;
    doc) select=--doc ;;
    *) select=--lib ;;
    esac
    [[ $in_turn_names != *" $name "* ]] || lock=$folder/in-turn
    local command=("$program")
    [ "$kind" != doc ] || command=(cargo test --release --workspace --no-fail-fast --doc)
    local status=0
    (
        cd "$directory"
        [ $lock = /dev/null ] || flock 8
        CARGO_MANIFEST_DIR=$directory exec timeout --kill-after=30 $limit_s "${command[@]}" >"$log" 2>&1 </dev/null 8>&-
    ) 8>"$lock" || status=$?
    (
        flock 9
        echo
        echo "     Running $select of $package ($((SECONDS - start)) s)"
        cat "$log"
        if [ $status != 0 ]; then
            [ $status != 124 ] || echo "error: $name did not end within $limit_s s"
            echo "--package $package $select" >>"$folder/failed"
        fi
    ) 9>"$folder/printing"
}
export -f run

# Prints the programs that have one of these names, or with `-v` first, those that have none.
named() {
    local not=
    [ "$1" != -v ] || { not=-v && shift; }
    awk -F '\t' -v names=" $* " ${not:+-v not=1} 'index(names, " " $3 " ") ? !not : not' "$folder/programs"
}
# run_each LANES: runs the programs that standard input has, a line each.
run_each() { tr '\t' '\n' | xargs --max-args 5 --max-procs "$1" --delimiter '\n' bash -c 'run "$@"' run; }

cargo test --release --workspace --no-run --message-format json-render-diagnostics >"$folder/artifacts"
jq --raw-output 'select(.reason == "compiler-artifact" and .profile.test and .executable)
    | (.manifest_path | rtrimstr("/Cargo.toml")) as $directory
    | (.package_id | capture("(?<package>[^/#]+)(#(?<id>.*))?$")) as $in
    | ($in.id // "" | if contains("@") then sub("@.*"; "") else $in.package end) as $package
    | [$package, .target.kind[0], .target.name, .executable, $directory] | @tsv' \
    "$folder/artifacts" >"$folder/programs"
printf 'workspace\tdoc\tdoc\tcargo\t%s\n' "$PWD" >>"$folder/programs"

named "${alone[@]}" | run_each 1
{
    named "${long[@]}" doc
    named -v "${alone[@]}" "${long[@]}" doc
} | run_each $(($(nproc) + 1))

if [ -s "$folder/failed" ]; then
    echo
    sed 's/^/error: failed; again: cargo test --release /' "$folder/failed"
    exit 1
fi
