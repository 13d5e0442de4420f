#!/bin/bash
# Compiles guests into target/wasm32-wasip1/guest, with the toolchain that install.sh has found.
#
#   build-guests.sh                  the samples
#   build-guests.sh --with-hostile   also the hostile guests of the tests
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/setup/guest-toolchain.sh
. tests/setup/go-toolchain.sh

samples=(balancer delay firewall http-server icmp-echo lpm-router macswap memcached monitor nat notebook packet-filter policer tcp-echo udp-echo word-count)
samples_c=(monitor-c packet-filter-c)
samples_go=(icmp-echo-go)
select=("${samples[@]/#/--package=}" --package=pinion-c-net --lib)
if [ "${1:-}" = --with-hostile ]; then
    select+=(--package pinion-hostile-guests --examples)
fi

# build_rust FLAGS ARGUMENT...: guests in Rust, compiled with these flags beside those that all have.
build_rust() {
    local flags="$1 -C link-arg=--compress-relocations -C strip=debuginfo"
    local arguments=(build --locked --profile guest --target $guest_target "${@:2}")
    # Flags in the environment count instead of those in .cargo/config.toml.
    case $(guest_toolchain) in
    rustup)
        RUSTFLAGS="$flags" cargo "${arguments[@]}"
        ;;
    debian)
        # Debian's compiler comes without the target's standard library, but with its source.
        RUSTC_BOOTSTRAP=1 RUSTC=$debian_rustc RUSTFLAGS="-L $debian_libc $flags" \
            $debian_cargo "${arguments[@]}" -Zbuild-std=std,panic_abort
        ;;
    *)
        echo "build-guests: no compiler for $guest_target is here: \`make install\` installs one" >&2
        exit 2
        ;;
    esac
}
build_rust "" "${select[@]}"
# By itself, as it links http-server without that module's exports, and cargo would unite the two in one build.
build_rust "" --package classifier --lib

# By itself: with wide arithmetic, limbs of 64 bits and SIMD its cryptography takes half the time. Parts of ring are in C; any archiver will do.
export CC_wasm32_wasip1=clang-19 AR_wasm32_wasip1=ar CFLAGS_wasm32_wasip1=-msimd128
build_rust '-C target-feature=+wide-arithmetic,+simd128 --cfg curve25519_dalek_bits="64"' --package tls-proxy --lib

# make_c FOLDER MODULE [SETTING...]: a guest in C.
make_c() {
    # The flags of the make that runs this script are not meant for these builds.
    MAKEFLAGS= make --no-print-directory --silent -C "$1" module MODULE="$PWD/target/$guest_target/guest/$2.wasm" \
        NET_LIBRARY="$PWD/target/$guest_target/guest/libpinion_net.a" "${@:3}"
}
for sample in "${samples_c[@]}"; do
    make_c "samples/$sample" "${sample//-/_}"
done

go=$(guest_go)
if [ -z "$go" ]; then
    echo "build-guests: no Go of at least $go_version_min is here: \`make install\` installs one" >&2
    exit 2
fi
# make_go FOLDER MODULE: a guest in Go. Nothing is downloaded: it needs the SDK and Go's own library only.
make_go() {
    GOOS=wasip1 GOARCH=wasm GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-mod=readonly \
        "$go" -C "$1" build -buildmode=c-shared -trimpath -o "$PWD/target/$guest_target/guest/$2.wasm" .
}
for sample in "${samples_go[@]}"; do
    make_go "samples/$sample" "${sample//-/_}"
done

if [ "${1:-}" = --with-hostile ]; then
    make_go tests/guests/hostile-go examples/go_words
    for source in tests/guests/hostile-c/*.c; do
        name=$(basename "$source" .c)
        make_c tests/guests/hostile-c "examples/c_$name" NAME="$name"
    done
fi
