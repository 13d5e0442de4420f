#!/usr/bin/env bash
# Checks whether Cargo.lock has the newest patch releases of the engine's line (wasmtime, its compiler and wizer) in the registry, whichever
# Rust version they need. Exit status: 0 if so, 1 if it is behind, 2 if the registry cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -t packages < <(sed -n 's/^name = "\(\(wasmtime\|cranelift\)[a-z0-9-]*\)"$/\1/p' Cargo.lock | sort -u)
# Writes no file. Within a line there are only patch releases: Cargo.toml names the line.
if ! answer=$(cargo update --config net.offline=false --dry-run --ignore-rust-version "${packages[@]}" 2>&1); then
    printf '%s\n' "$answer" >&2
    echo "error: the registry could not be asked for newer patches of wasmtime" >&2
    exit 2
fi
behind=$(grep -E '^ +(Updating|Adding) [a-z0-9-]+ v' <<<"$answer" || true)
if [[ -n $behind ]]; then
    printf 'error: Cargo.lock is behind the registry:\n%s\nrun: cargo update wasmtime wasmtime-wizer\n' "$behind" >&2
    exit 1
fi
echo "Cargo.lock has the newest patch of the engine's line: wasmtime $(sed -n '/^name = "wasmtime"$/{n;s/version = "\(.*\)"/\1/p}' Cargo.lock)"
