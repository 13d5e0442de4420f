#!/bin/bash
# Runs all attacks and prints a table of them, with what a hundred neighbours saw of some. Ends with the numbers of those that the node
# withstood and of those that it did not.
set -euo pipefail
cd "$(dirname "$0")/../.."

logs=$(mktemp --directory)
trap 'rm -rf "$logs"' EXIT
: >"$logs/table"

# Runs tests of a program. Adds `part attack outcome` for each of them to the table; their part is their module, if none is given.
run() {
	local part=$1 program=$2 log status=0
	shift 2
	log="$logs/$program"
	cargo test --release --workspace --test "$program" -- "$@" >"$log" 2>&1 || status=$?
	if ! grep -q '^test result:' "$log" || { ((status)) && ! grep -q ' FAILED$' "$log"; } || grep -q '^running 0 tests' "$log"; then
		cat "$log"
		exit 1
	fi
	((status == 0)) || sed -n '/^failures:/,$p' "$log"
	sed -nE 's/^test (.*) \.\.\. (ok|FAILED)$/\1 \2/p' "$log" | sed -E 's/^([a-z_]+)::([a-z_0-9]+) /\1 \2 /; t; s/^/- /' |
		sed "${part:+s/^[^ ]* /$part /}" >>"$logs/table"
}

run '' hostile --include-ignored --show-output
while read -r part program filter; do
	[[ $part == \#* ]] || run "$part" "$program" ${filter:+"$filter"} </dev/null
done <tests/hostile/elsewhere

sort "$logs/table" | while read -r part attack outcome; do
	printf '%-10s %-120s %s\n' "$part" "${attack//_/ }" "${outcome/ok/held}"
done
awk '/^---- .* stdout ----$/ { gsub("_", " ", $2); attack = $2 } /^neighbours/ { print attack ": " $0 }' "$logs/hostile" | sort -u
failed=$(grep -c ' FAILED$' "$logs/table" || true)
echo "$(($(wc -l <"$logs/table") - failed)) passed, $failed failed"
((failed == 0))
