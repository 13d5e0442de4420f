#!/bin/bash
# Compiles guests into target/wasm32-wasip1/guest, with whatever toolchain install.sh has found.
#
#   build-guests.sh                  the samples
#   build-guests.sh --with-hostile   and the guests that tests misbehave with
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/setup/guest-toolchain.sh

samples=(balancer delay firewall icmp-echo lpm-router macswap monitor nat notebook packet-filter policer udp-echo word-count)
select=("${samples[@]/#/--package=}" --lib)
if [ "${1:-}" = --with-hostile ]; then
    select+=(--package pinion-hostile-guests --examples)
fi
arguments=(build --locked --profile guest --target $guest_target "${select[@]}")

case $(guest_toolchain) in
rustup)
    exec cargo "${arguments[@]}"
    ;;
debian)
    # Its compiler comes without the target's standard library, but with its source.
    export RUSTC_BOOTSTRAP=1 RUSTC=$debian_rustc RUSTFLAGS="-L $debian_libc"
    exec $debian_cargo "${arguments[@]}" -Zbuild-std=std,panic_abort
    ;;
*)
    echo "build-guests: no compiler for $guest_target is here: \`make install\` installs one" >&2
    exit 2
    ;;
esac
