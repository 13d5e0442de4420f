#!/bin/bash
# Runs all attacks and prints a table of them, with what a hundred neighbours saw of some. Ends with the numbers of those that the node
# withstood and of those that it did not.
set -euo pipefail
cd "$(dirname "$0")/../.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
cargo test --release --workspace --test hostile -- --include-ignored --show-output >"$log" 2>&1 || status=$?
if ! grep -q '^test result:' "$log" || { ((status)) && ! grep -q ' FAILED$' "$log"; }; then
	cat "$log"
	exit 1
fi
((status == 0)) || sed -n '/^failures:/,$p' "$log"
sed -nE 's/^test ([a-z_]+)::([a-z_0-9]+) \.\.\. (ok|FAILED)$/\1 \2 \3/p' "$log" | sort |
	while read -r part attack outcome; do
		printf '%-10s %-110s %s\n' "$part" "${attack//_/ }" "${outcome/ok/held}"
	done
awk '/^---- .* stdout ----$/ { gsub("_", " ", $2); attack = $2 } /^neighbours/ { print attack ": " $0 }' "$log" | sort -u
sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 passed, \2 failed/p' "$log"
exit "$status"
