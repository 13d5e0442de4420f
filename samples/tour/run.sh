#!/bin/bash
# The tour: a node on a TAP device, three clients that ping it, the FWP that each of them gets, services over TCP and TLS, and a neural network. `make run` builds what
# this needs and starts it; Ctrl-C removes everything again.
#
#   HOST=1   the device is put on the host's own network instead of a network namespace of its own
set -euo pipefail

pinion=target/release/pinion
piniond=target/release/piniond
manifest=samples/tour/tour.toml
images=samples/classifier/tests/images
# The default socket of `pinion`, so that commands can be typed as in the README.
socket=/run/pinion/pinion.sock
device=pinion0
namespace=pinion
clients=(10.77.0.1 10.77.0.11 10.77.0.12)
client_v6=fd77::1
node=10.77.0.2
detour=10.77.0.3
node_v6=fd77::2
# How long to wait for steps that take a second on a healthy machine.
patience_s=30

folder=
daemon=
made_namespace=no
had_socket_folder=yes

on_host() { [ "${HOST:-0}" = 1 ]; }
# Runs a command where the clients are.
inside() { if on_host; then "$@"; else ip netns exec $namespace "$@"; fi; }
typed_inside() { if on_host; then echo "$*"; else echo "ip netns exec $namespace $*"; fi; }

die() {
    echo "tour: $*" >&2
    exit 2
}

show() {
    echo
    echo "\$ $*"
}

clean_up() {
    trap '' INT TERM HUP
    if [ -n "$daemon" ]; then
        kill -TERM "$daemon" 2>/dev/null || true
        for ((tenths = 0; tenths < patience_s * 10; tenths++)); do
            kill -0 "$daemon" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    # A node that was killed leaves its socket.
    if [ -S $socket ] && ! $pinion status >/dev/null 2>&1; then
        rm -f $socket
    fi
    [ $had_socket_folder = yes ] || rmdir "$(dirname $socket)" 2>/dev/null || true
    [ $made_namespace = no ] || ip netns del $namespace || true
    [ -z "$folder" ] || rm -rf "$folder"
}

# Whether a tour that was killed has left its namespace: its loopback interface names the process.
is_left_behind() {
    local tour
    tour=$(ip -n $namespace link show dev lo 2>/dev/null | sed -n 's/^ *alias tour of process //p')
    [ -n "$tour" ] && ! kill -0 "$tour" 2>/dev/null && [ -z "$(ip netns pids $namespace)" ]
}

check_machine() {
    [ "$(id -u)" = 0 ] || die "a network device takes root to make: run this as root"
    cd "$(dirname "$0")/../.."
    for program in ip ping curl openssl setpriv; do
        command -v $program >/dev/null || die "there is no $program here: \`make install\` installs it"
    done
    for file in $piniond target/release/pinion-builder $pinion; do
        [ -x $file ] || die "there is no $file yet: \`make build\` builds it"
    done
    [ -c /dev/net/tun ] || modprobe tun 2>/dev/null || die "this machine has no TAP devices: there is no /dev/net/tun"
    if [ -S $socket ] && $pinion status >/dev/null 2>&1; then
        die "another piniond answers on $socket: stop it first"
    fi
    if on_host; then
        [ ! -e /sys/class/net/$device ] || die "the host has an interface $device already: remove it, or go without HOST=1"
        [ -z "$(ip route show root 10.77.0.0/24)" ] \
            || die "the host has a route for 10.77.0.0/24 already, which the tour uses: go without HOST=1"
    elif is_left_behind; then
        ip netns del $namespace
    elif [ -e /run/netns/$namespace ]; then
        die "there is a network namespace $namespace already: remove it with \`ip netns del $namespace\` if it is no longer needed"
    fi
}

start_node() {
    folder=$(mktemp --directory --tmpdir pinion-tour.XXXXXX)
    [ -d "$(dirname $socket)" ] || had_socket_folder=no
    local where=
    if ! on_host; then
        ip netns add $namespace
        made_namespace=yes
        ip -n $namespace link set dev lo up alias "tour of process $$"
        where="namespace = \"$namespace\""
    fi
    cat >"$folder/piniond.toml" <<CONFIG
state_dir = "$folder/state"
socket = "$socket"

[[port]]
name = "lan"
device = "net_tap0,iface=$device"
$where
addresses = ["$node/24", "$detour/24", "$node_v6/64"]
CONFIG
    # In its own process group, so that Ctrl-C reaches this script first. It ends when this script does.
    setsid setpriv --pdeathsig TERM $piniond --config "$folder/piniond.toml" >"$folder/log" 2>&1 &
    daemon=$!
    wait_for "the node" $pinion status
}

# wait_for WHAT COMMAND...: waits until the command succeeds, while the node is alive.
wait_for() {
    local what=$1 start=$SECONDS
    shift
    until "$@" >/dev/null 2>&1; do
        if ! kill -0 "$daemon" 2>/dev/null; then
            # The last line says why it ended.
            tail -n 1 "$folder/log" >&2
            exit 2
        fi
        if ((SECONDS - start > patience_s)); then
            tail -n 20 "$folder/log" >&2
            die "$what was not ready within $patience_s seconds; the end of its log is above"
        fi
        sleep 0.1
    done
}

address_clients() {
    local client
    local in=()
    on_host || in=(-n $namespace)
    for client in "${clients[@]}"; do
        ip "${in[@]}" address add "$client/24" dev $device
    done
    ip "${in[@]}" link set $device up
    ip "${in[@]}" -6 address add $client_v6/64 dev $device nodad 2>/dev/null || client_v6=
}

# is_ready CHAIN
is_ready() { $pinion get chains "$1" --tenant demo | awk 'NR == 2 && $5 > 0 { ready = 1 } END { exit !ready }'; }

ping_as_each_client() {
    local client
    for client in "${clients[@]}"; do
        show "$(typed_inside ping -c 3 -I "$client" $node)"
        inside ping -c 3 -i 0.2 -I "$client" $node
    done
    if [ -z "$client_v6" ]; then
        echo "This machine has no IPv6, so there is no ping to $node_v6."
        return
    fi
    show "$(typed_inside ping -c 3 $node_v6)"
    inside ping -c 3 -i 0.2 -I $client_v6 $node_v6
}

# What a client says to memcached, and hears.
cache_dialogue="exec 3<>/dev/tcp/$node/11211; printf 'set color 0 0 4\\r\\nblue\\r\\nget color\\r\\nquit\\r\\n' >&3; cat <&3"

ask_services() {
    show "$(typed_inside curl --silent http://$node/)"
    inside curl --silent --max-time $patience_s http://$node/
    show "$(typed_inside bash -c "'... > /dev/tcp/$node/11211'")      # set color, get color"
    inside timeout $patience_s bash -c "$cache_dialogue"
}

# Adds a server for HTTPS. Its certificate and key are made here, as every site has its own: only the node gets the key.
add_secure_site() {
    local guests=$PWD/target/wasm32-wasip1/guest
    mkdir -p "$folder/secure/files"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$node" -addext "subjectAltName=IP:$node" \
        -keyout "$folder/secure/site.key.pem" -out "$folder/secure/files/site.pem" 2>/dev/null
    cat >"$folder/secure/secure.toml" <<MANIFEST
version = "pinion.v1"
tenant = "demo"

[key.tour]
file = "site.key.pem"

[[module]]
name = "tls-proxy"
path = "$guests/tls_proxy.wasm"

[[chain]]
name = "https"
stage = [{ module = "tls-proxy", files = "files", keys = ["tour"], config = """
[[certificate]]
chain = "/site.pem"
key = "tour"
[site]
[[site.page]]
path = "/"
text = "<h1>Hello over TLS, signed by the node</h1>"
""" }]
cache_min = 1

[[rule]]
name = "https"
policy = "per-client"
chain = "https"
match = { destination = "$node", protocol = "tcp", destination_ports = "443" }
MANIFEST
    show "$pinion apply -f $folder/secure/secure.toml"
    $pinion apply -f "$folder/secure/secure.toml"
    wait_for "the chain https" is_ready https
}

ask_sandboxes() {
    show "$(typed_inside curl --silent --cacert "$folder/secure/files/site.pem" https://$node/)"
    inside curl --silent --max-time $patience_s --cacert "$folder/secure/files/site.pem" https://$node/
    echo
    show "$(typed_inside curl --silent --data-binary @$images/ring.png http://$node:8090/classify)"
    inside curl --silent --max-time $patience_s --data-binary @$images/ring.png http://$node:8090/classify
    echo
}

say_what_next() {
    cat <<NEXT

The node stays up until Ctrl-C. From another terminal, in this folder:

  $(typed_inside ping $node)
  $(typed_inside ping $detour)      # the same through a chain of three functions
  $(typed_inside curl http://$node/)      # HTTP, by an instance of the client's own
  $(typed_inside ping -f -c 10000 -I "${clients[1]}" $node)
  $pinion get fwps -A
  $pinion get instances -A
  $pinion describe rule ping --tenant demo
  $pinion status
  $pinion delete rule ping --tenant demo      # and pings are answered no more
  $pinion apply -f $manifest      # and they are again

Its configuration is $folder/piniond.toml, its log $folder/log.
NEXT
}

check_machine
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

echo "A node starts, with a port on $device in the $(on_host && echo "host's own network" || echo "network namespace $namespace")."
start_node
address_clients
show "$pinion apply -f $manifest"
$pinion apply -f $manifest
for chain in echo web cache images; do
    wait_for "the chain $chain" is_ready $chain
done
ping_as_each_client
ask_services
add_secure_site
ask_sandboxes
show "$pinion get fwps -A"
$pinion get fwps -A
say_what_next
# Returns only if the node ends.
status=0
wait "$daemon" || status=$?
tail -n 5 "$folder/log" >&2
daemon=
die "the node ended by itself with status $status; the end of its log is above"
