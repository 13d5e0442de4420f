//! `memcached` on a node, with clients that were written for memcached, beside Debian's memcached.
#![forbid(unsafe_code)]

use std::net::TcpStream;
use std::process::Child;

use pinion_tests::machine::process::run;
use pinion_tests::network::bed::{Bed, Client, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::until::{SOON, until};

const PORT: u16 = 11_211;

/// Makes a bed whose node caches for all clients.
fn bed() -> Bed {
    let bed = Bed::new(Device::Tap);
    let config = "memory = \"32m\"\nconnections_max = 128";
    let mut manifest = Manifest::of(TENANT).module("memcached", &build::sample("memcached")).with(format_args!(
        "[[chain]]\nname = \"cache\"\nstage = [{{ module = \"memcached\", config = {config:?} }}]\nmemory_limit_kib = 65536\n"
    ));
    for (name, destination) in [("cache", NODE), ("cache-v6", NODE_V6)] {
        manifest = manifest.with(format_args!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"shared\"\nchain = \"cache\"\n\
             match = {{ destination = \"{destination}\", protocol = \"tcp\", destination_ports = \"{PORT}\" }}\n"
        ));
    }
    bed.node.apply(manifest.text());
    bed.node.await_instance(TENANT, "cache");
    bed
}

/// Debian's memcached on a client's machine. Ends when dropped.
struct Reference(Child);

impl Reference {
    #[track_caller]
    fn new(at: &Client) -> Self {
        let mut command = at.namespace.command("setpriv");
        // Otherwise the server would outlive a test that is killed; with another user it would lose that again.
        command.args(["--pdeathsig", "KILL", "memcached", "-u", "root", "-U", "0", "-p", &PORT.to_string()]);
        let server = Self(command.spawn().expect("setpriv can be run"));
        until("memcached: `make install-test` installs it", SOON, || {
            at.namespace.inside(|| TcpStream::connect((&*at.address, PORT))).ok()
        });
        server
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Debian's Python, for which the package `python3-pymemcache` is installed.
const PYTHON: &str = "/usr/bin/python3";

/// What programs do with a cache by `pymemcache`.
const PYMEMCACHE: &str = r#"
import sys
from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError

def check(found, expected):
    assert found == expected, f"{found!r}, and it should be {expected!r}"

server = (sys.argv[1], 11211)
client = Client(server, timeout=60, connect_timeout=60)
check(client.set("color", "blue", noreply=False), True)
check(client.get("color"), b"blue")
check(client.get("none"), None)
check(client.add("color", "red", noreply=False), False)
check(client.replace("color", "green", expire=1000, noreply=False), True)
check(client.append("color", "ish", noreply=False), True)
check(client.prepend("color", "dark ", noreply=False), True)
value, tag = client.gets("color")
check(value, b"dark greenish")
check(client.cas("color", "grey", tag, noreply=False), True)
check(client.cas("color", "pink", tag, noreply=False), False)
check(client.cas("none", "pink", tag, noreply=False), None)
check(client.set("count", "41", noreply=False), True)
check(client.incr("count", 1), 42)
check(client.decr("count", 100), 0)
check(client.touch("count", 1000, noreply=False), True)
# As memcached does, it keeps the length that the number had.
check(client.get("count"), b"0 ")
many = {f"key{number}": bytes([65 + number % 26]) * number for number in range(1000)}
check(client.set_many(many, noreply=False), [])
check(client.get_many(many), many)
big = bytes(number * number % 251 for number in range(1000000))
check(client.set("big", big, noreply=False), True)
check(client.get("big"), big)
try:
    client.set("bigger", b"x" * (2 << 20), noreply=False)
    raise SystemExit("an item of two mebibytes was taken")
except MemcacheServerError:
    pass
check(client.get("color"), b"grey")
try:
    client.incr("color", 1)
    raise SystemExit("a text was incremented")
except MemcacheClientError:
    pass
check(client.delete("color", noreply=False), True)
check(client.delete("color", noreply=False), False)
assert client.version().startswith(b"1.6"), client.version()
check(client.stats()[b"cmd_touch"] > 0, True)
# Without waiting for answers, and over several connections.
for number in range(500):
    client.set(f"quiet{number}", str(number), noreply=True)
check(client.get("quiet499"), b"499")
pool = PooledClient(server, max_pool_size=8, timeout=60)
check(pool.get("quiet0"), b"0")
check(pool.flush_all(noreply=False), True)
check(client.get("quiet0"), None)
client.quit()
print("all is as it should be")
"#;

#[test]
fn pymemcache_finds_what_it_finds_in_memcached() {
    let bed = bed();
    let [client, server, ..] = &bed.clients[..] else { panic!("a bed has three clients") };
    let _reference = Reference::new(server);
    for host in [NODE, NODE_V6, &server.address] {
        let said = run(client.namespace.command(PYTHON).args(["-c", PYMEMCACHE, host]));
        assert_eq!(said, "all is as it should be\n", "{host}");
    }
}

#[test]
fn memccapable_passes_the_text_protocol_as_with_memcached() {
    let bed = bed();
    let [client, server, ..] = &bed.clients[..] else { panic!("a bed has three clients") };
    let _reference = Reference::new(server);
    let [ours, theirs] = [NODE, &server.address].map(|host| {
        let seconds = SOON.as_secs().to_string();
        run(client.namespace.command("memccapable").args(["-a", "-t", &seconds, "-h", host, "-p", &PORT.to_string()]))
    });
    assert_eq!(ours, theirs);
    // It lists what it has tried, above this line.
    assert!(ours.ends_with("All tests passed\n") && ours.lines().count() > 1, "{ours}");
}

#[test]
fn memcaslap_finds_each_value_as_it_was_stored_under_load() {
    let bed = bed();
    let server = format!("{NODE}:{PORT}");
    let mut command = bed.clients[0].namespace.command("memcaslap");
    command.args(["--servers", &server, "--threads", "2", "--concurrency", "32"]);
    let report = run(command.args(["--execute_number", "20000", "--verify", "1"]));
    println!("{report}");
    let count = |name: &str| -> u64 {
        let line =
            report.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}: {report}"));
        line.trim().parse().expect("a number")
    };
    assert_eq!((count("get_misses:"), count("verify_misses:"), count("verify_failed:")), (0, 0, 0), "{report}");
    assert!(count("cmd_get:") + count("cmd_set:") >= 20_000, "{report}");
}
