#!/bin/bash
# Installs what building, running, testing and measuring Pinion needs on Debian 12, and reports each step. If nothing is missing, it changes
# nothing, and needs no privileges.
set -euo pipefail
. "$(dirname "$0")/guest-toolchain.sh"
. "$(dirname "$0")/go-toolchain.sh"
. "$(dirname "$0")/python-tools.sh"

# The packages for the kernel's and DPDK's side of the build, and the programs that tests and the tour run.
packages=(gcc libc6-dev pkg-config libdpdk-dev dpdk clang-19 libclang-19-dev iproute2 iputils-ping curl openssl)
# The packages that compile guests in C, with the compiler above.
packages+=(make lld-19 wasi-libc libclang-rt-19-dev-wasm32)
# What downloads Go, if there is none that is new enough.
go_packages=(curl ca-certificates)
# Further packages for the tests: a compiler for the fuzzing engine, traffic generators, an API client in another language, what counts, the
# memcached that `samples/memcached` is compared with, clients of HTTP and memcached, and scanners of TLS.
[ "${1:-}" != test ] || packages+=(g++ iperf3 ethtool traceroute python3 python3-venv python3-grpcio apache2-utils wrk tcpdump busybox valgrind jq memcached \
    nghttp2-client slowhttptest python3-pymemcache libmemcached-tools nmap sslscan testssl.sh)
# The peers of the figures: dpdk-testpmd, the kernel's packet filter, servers, traffic generators.
bench_packages=(dpdk-dev nftables memcached nginx-light iperf3 wrk git)
# The free memory in huge pages that a figure needs.
bench_huge_mib=384
# The program that makes the book in docs.
mdbook_version=0.5.4
# Compiles guests where rustup cannot get its own target.
guest_packages=(rustc-web cargo-web rust-web-src rust-web-llvm wasi-libc)

say() { echo "install: $*"; }
die() {
    echo "install: $*" >&2
    exit 2
}

missing_of() {
    comm -23 <(printf '%s\n' "$@" | sort) \
        <(dpkg-query --show --showformat '${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^ii *//p' | sort)
}

updated=no
apt_install() {
    [ "$(id -u)" = 0 ] || die "these packages are missing, which takes root to install: $*"
    say "packages: $*"
    if [ $updated = no ]; then
        apt_get update || say "apt-get update failed; trying with what apt knows"
        updated=yes
    fi
    apt_get install --yes --no-install-recommends "$@" || die "apt-get could not install $*; its own words are above"
}
# A package with a server does not start it: nobody here asked for one on the machine's own network.
policy=/usr/sbin/policy-rc.d
apt_get() {
    if [ ! -e $policy ]; then
        trap 'rm -f $policy' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null
}

install_packages() {
    command -v dpkg-query apt-get >/dev/null || die "this is no Debian, where these packages would be installed:" \
        "${packages[*]}; install their like by hand and pass INSTALL=no to make"
    local missing
    mapfile -t missing < <(missing_of "${packages[@]}")
    [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
    pkg-config --atleast-version=22.11 libdpdk \
        || die "libdpdk-dev is version $(pkg-config --modversion libdpdk), and Pinion needs 22.11, which Debian 12 has"
}

check_rust() {
    command -v cargo rustc >/dev/null || die "there is no Rust here: install it as https://rustup.rs says, and try again"
    rust_is_recent rustc \
        || die "$(rustc --version) is too old, Pinion needs $(rust_version_min): \`rustup update stable\` gets it"
}

# rustup_add WHAT...: false if rustup is not here or can't get it.
rustup_add() {
    command -v rustup >/dev/null || return 1
    say "rustup $*"
    timeout 300 rustup --quiet "$@"
}

install_guest_toolchain() {
    [ -z "$(guest_toolchain)" ] || return 0
    if rustup_add target add $guest_target && [ -n "$(guest_toolchain)" ]; then
        return 0
    fi
    say "rustup cannot get the target $guest_target; Debian's compiler for it will do"
    apt_install "${guest_packages[@]}"
    # The package has a link to a linker of another package, whose version changes with it.
    local linker
    linker=$(basename "$(readlink "$(dpkg-query --listfiles rust-web-llvm | grep '/bin/rust-lld$')")")
    command -v rust-lld >/dev/null || apt_install "$linker"
    [ -n "$(guest_toolchain)" ] || die "guests cannot be compiled here: neither rustup nor Debian has" \
        "a Rust of at least $(rust_version_min) for $guest_target"
}

install_go() {
    [ -z "$(guest_go)" ] || return 0
    local machine file archive
    machine=$(dpkg --print-architecture)
    file=go$go_version.linux-$machine.tar.gz
    [ -n "${go_sha256[$machine]:-}" ] || die "there is no Go of at least $go_version_min here, and Pinion knows none for $machine:" \
        "install one as https://go.dev/doc/install says, and try again"
    command -v curl >/dev/null || apt_install "${go_packages[@]}"
    say "go $go_version, from https://go.dev/dl into $go_folder"
    mkdir -p "$go_folder"
    archive=$(mktemp)
    if ! timeout 600 curl --fail --silent --show-error --location --output "$archive" "https://go.dev/dl/$file"; then
        rm -f "$archive"
        die "there is no Go of at least $go_version_min here, and https://go.dev/dl/$file cannot be got; curl's own words are above." \
            "Install Go as https://go.dev/doc/install says, and try again"
    fi
    if ! echo "${go_sha256[$machine]}  $archive" | sha256sum --check --quiet >/dev/null; then
        rm -f "$archive"
        die "https://go.dev/dl/$file is not the file that Pinion knows: its SHA-256 is not ${go_sha256[$machine]}"
    fi
    tar --extract --gzip --strip-components=1 --directory "$go_folder" --file "$archive"
    rm -f "$archive"
    [ -n "$(guest_go)" ] || die "the Go in $go_folder does not run"
}

install_python_tools() {
    ! has_python_tools || return 0
    say "python: ${python_packages[*]}, by pip into $python_folder"
    rm -rf "$python_folder"
    /usr/bin/python3 -m venv "$python_folder" && "$python_folder/bin/pip" install --quiet --disable-pip-version-check "${python_packages[@]}" \
        || die "pip could not install ${python_packages[*]}; its own words are above"
    has_python_tools || die "the Python packages in $python_folder can't be imported"
}

install_component() {
    cargo "$1" --version >/dev/null 2>&1 || rustup_add component add "$2" || die "$2 is missing, and rustup cannot get it"
}

# Prints free MiB in huge pages.
free_huge_mib() {
    awk '/^HugePages_Free:/ { free = $2 } /^Hugepagesize:/ { kib = $2 } END { print int(free * kib / 1024) }' /proc/meminfo
}

reserve_huge_pages() {
    local free pages kib setting=/proc/sys/vm/nr_hugepages
    free=$(free_huge_mib)
    [ "$free" -lt $bench_huge_mib ] || return 0
    kib=$(awk '/^Hugepagesize:/ { print $2 }' /proc/meminfo)
    pages=$(($(cat $setting) + ((bench_huge_mib - free) * 1024 + kib - 1) / kib))
    say "huge pages: $pages, so that $bench_huge_mib MiB are free, in $setting"
    echo $pages >$setting || true
    free=$(free_huge_mib)
    [ "$free" -ge $bench_huge_mib ] || die "$free MiB of huge pages are free and $bench_huge_mib are needed, but the kernel" \
        "has no more memory in one piece: reserve them after a restart, or free some"
}

install_mdbook() {
    ! command -v mdbook >/dev/null || return 0
    say "mdbook $mdbook_version, by cargo"
    cargo install --quiet --locked --version $mdbook_version --no-default-features --features search mdbook \
        || die "cargo could not install mdbook; its own words are above"
}

# Devices and network namespaces need root: better reported now than after the build.
case "${1:-}" in
run | test | bench) [ "$(id -u)" = 0 ] || die "make $1 makes network devices and namespaces, which takes root: run it as root" ;;
esac
if [ "${1:-}" = bench ]; then
    # Figures use standard output for their JSON.
    exec >&2
    packages+=("${bench_packages[@]}")
fi
check_rust
# The book needs these, and nothing of what follows.
if [ "${1:-}" = book ]; then
    command -v python3 >/dev/null || apt_install python3
    install_mdbook
    exit
fi
install_packages
install_guest_toolchain
install_go
# The tests need these, and nothing else does.
if [ "${1:-}" = test ]; then
    install_component fmt rustfmt
    install_component clippy clippy
    install_python_tools
fi
if [ "${1:-}" = bench ]; then
    reserve_huge_pages
fi
