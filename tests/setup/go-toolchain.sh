# Finds the Go that compiles guests in Go on this machine. Sourced by install.sh and build-guests.sh.

# The oldest Go that exports functions to WebAssembly.
go_version_min=1.24
# What install.sh downloads if there is none that is new enough, as Debian 12 has 1.19: the files and sums of https://go.dev/dl.
go_version=1.26.1
declare -A go_sha256=(
    [amd64]=031f088e5d955bab8657ede27ad4e3bc5b7c1ba281f05f245bcc304f327c987a
    [arm64]=a290581cfe4fe28ddd737dde3095f3dbeb7f2e4065cab4eae44dfc53b760c2f7
)
go_folder=${XDG_CACHE_HOME:-$HOME/.cache}/pinion/go$go_version

# go_is_recent GO: succeeds if that compiler is new enough. A compiler that would have to be downloaded first does not count.
go_is_recent() {
    local version
    version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
    [ -n "$version" ] && printf '%s\n' $go_version_min "${version#go}" | sort --check=quiet --version-sort
}

# Prints the path of a Go that is new enough, or nothing.
guest_go() {
    local go
    for go in "$(command -v go)" /usr/local/go/bin/go "$go_folder/bin/go"; do
        if [ -x "$go" ] && go_is_recent "$go"; then
            echo "$go"
            return
        fi
    done
}
