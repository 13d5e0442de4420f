# Finds the toolchain that compiles guests on this machine. Sourced by install.sh and build-guests.sh.

guest_target=wasm32-wasip1
debian_cargo=/usr/bin/cargo
debian_rustc=/usr/bin/rustc
debian_std=/usr/lib/rustlib/src/rust/library
debian_libc=/usr/lib/wasm32-wasi

# The oldest Rust that the workspace builds with.
rust_version_min() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../../Cargo.toml"
}

# rust_is_recent RUSTC: succeeds if that compiler is new enough.
rust_is_recent() {
    local version
    version=$("$1" --version 2>/dev/null | cut -d' ' -f2)
    [ -n "$version" ] && printf '%s\n' "$(rust_version_min)" "$version" | sort --check=quiet --version-sort
}

# Prints rustup, debian, or nothing if guests can't be compiled.
guest_toolchain() {
    if [ -d "$(rustc --print sysroot 2>/dev/null)/lib/rustlib/$guest_target" ]; then
        echo rustup
    elif [ -x $debian_cargo ] && [ -d $debian_std ] && [ -d $debian_libc ] && rust_is_recent $debian_rustc \
        && command -v rust-lld >/dev/null; then
        echo debian
    fi
}
