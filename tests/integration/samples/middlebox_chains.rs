//! Firewall, translator and router as one chain between two networks, with the kernel's own programs on both sides. Packets from outside
//! pass the same instances in the opposite order.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::UdpSocket;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use pinion_tests::machine::cores::two_cores;
use pinion_tests::machine::process::{output, run};
use pinion_tests::network::border::{
    Border, INSIDE, INSIDE_NET, INSIDE_TOO, INSIDE_V6, INTERFACE, OUTSIDE, OUTSIDE_V6, ROUTER, ROUTER_V6, SHARED,
};
use pinion_tests::network::namespace::Namespace;
use pinion_tests::network::tagged_cable::TaggedCable;
use pinion_tests::traffic::iperf::{assert_tcp_flows, iperf};
use pinion_tests::traffic::ping::{ping, pings};
use pinion_tests::until::{SOON, until};

/// Hosts inside may begin any flow, hosts outside none.
const FIREWALL: &str =
    "inside = [\"10.79.0.0/24\", \"fd79::/64\"]\n[[rule]]\naction = \"allow\"\ndirection = \"out\"\n";
const HTTP_PORT: &str = "8080";
/// The datagrams that are sent each way.
const DATAGRAMS: u64 = 500;

fn nat() -> String {
    format!(
        "inside = [\"{INSIDE_NET}\"]\noutside = [\"{SHARED}\"]\n[to_outside]\noutput = 0\n[to_inside]\noutput = 0\n"
    )
}

/// A border with all three middleboxes.
fn guarded() -> Border {
    guard(Border::new())
}

fn guard(border: Border) -> Border {
    border.pass_both_ways(&[("firewall", FIREWALL), ("nat", &nat()), ("lpm-router", &Border::router())], "shared");
    border
}

/// A web server, and its log of requests.
struct Server {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Server {
    #[track_caller]
    fn new(at: &Namespace, folder: &std::path::Path) -> Self {
        let mut command = at.command("setpriv");
        // Otherwise the server would outlive a test that is killed.
        command
            .args(["--pdeathsig", "KILL", "python3", "-u", "-m", "http.server", HTTP_PORT, "--directory"])
            .arg(folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("python3 can be run: `make install-test` installs it");
        let said = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let serves = lines.next().is_some_and(|line| line.is_ok_and(|line| line.contains("Serving HTTP")));
        let server = Self { child, said };
        assert!(serves, "the web server does not serve");
        server
    }

    /// Returns the address of the client that made the next request.
    #[track_caller]
    fn client(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("it says who asks");
        line.split(' ').next().unwrap_or_default().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn curl(from: &Namespace, url: &str) -> Command {
    let mut command = from.command("curl");
    command.args(["--silent", "--show-error", "--fail", "--connect-timeout", "5", "--max-time", "30", url]);
    command
}

/// Returns what the serving FWPs have received: those of the first stage, the least first, then those of the next.
fn received(border: &Border) -> Vec<u64> {
    let mut fwps = border.node.cli().serving_fwps();
    fwps.sort_by_key(|fwp| (fwp["stage"].as_u64(), fwp["counters"]["received"].as_u64()));
    fwps.iter().map(|fwp| fwp["counters"]["received"].as_u64().expect("a count")).collect()
}

#[test]
fn pings_are_answered_through_the_same_instances_and_no_host_outside_gets_in() {
    let border = guarded();
    pings(&border.inside, 5, &format!("-i 0.05 {OUTSIDE}")).assert_all(5);
    pings(&border.inside, 5, &format!("-i 0.05 -I {INSIDE_TOO} {OUTSIDE}")).assert_all(5);
    // Each request and each answer passes each of the three.
    assert_eq!(received(&border), [20, 20, 20]);
    for address in [SHARED, INSIDE] {
        let summary = ping(&border.outside, &format!("-c 3 -i 0.05 -W 1 {address}"));
        assert_eq!(summary.received, 0, "to {address}: {summary:?}");
    }
    let refused = output(&mut curl(&border.outside, &format!("http://{SHARED}:{HTTP_PORT}/")));
    assert!(!refused.status.success(), "a connection from outside was accepted");
    assert!(received(&border).len() == 3, "the same instances serve still");
}

#[test]
fn a_web_server_outside_sees_the_shared_address_and_is_read_whole() {
    let border = guarded();
    let folder = tempfile::tempdir().expect("a folder");
    let page: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
    std::fs::write(folder.path().join("page"), &page).expect("a file");
    let mut server = Server::new(&border.outside, folder.path());
    for _ in 0..2 {
        let got = run(&mut curl(&border.inside, &format!("http://{OUTSIDE}:{HTTP_PORT}/page")));
        assert!(got == page, "{} bytes of {} came, or others", got.len(), page.len());
        assert_eq!(server.client(), SHARED);
    }
}

#[test]
fn tcp_flows_both_ways_and_a_slow_stream_of_datagrams_loses_nothing() {
    let border = guarded();
    for more in ["", " --reverse"] {
        assert_tcp_flows(&border.inside, &border.outside, OUTSIDE, more);
    }
    for more in ["", " --reverse"] {
        let words = format!("--udp --bitrate 2M --length 1000 --blockcount {DATAGRAMS}{more}");
        let moved = iperf(&border.inside, &border.outside, OUTSIDE, &words);
        assert!(moved.datagrams >= DATAGRAMS && moved.lost == 0, "{more}: {moved:?}");
    }
}

#[test]
fn a_trace_of_the_route_shows_the_router_and_the_host_behind_it() {
    let border = guarded();
    // The kernel puts an error into a socket's queue before it marks the socket. A traceroute that has emptied the queue in between waits
    // until its timeout. It therefore must not run while the core that sends the errors delivers them.
    let (gateway, _) = two_cores();
    // With datagrams, echo requests and TCP: the error for a packet whose TTL expires comes back through translator and firewall.
    for kind in ["--udp", "--icmp", "--tcp"] {
        let mut command = border.inside.command("taskset");
        command.args(["-c", &gateway.to_string(), "traceroute"]);
        let said = run(command.args([kind, "-n", "-q", "1", "-w", "3", "-m", "5", OUTSIDE]));
        let hops: Vec<&str> = said.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(hops, [ROUTER, OUTSIDE], "{kind}: {said}");
    }
}

#[test]
fn hosts_of_both_sides_learn_how_long_their_packets_may_be() {
    let border = Border::new();
    let open = format!("{FIREWALL}[[rule]]\naction = \"allow\"\ndirection = \"in\"\n");
    let narrow = Border::router().replace("[[next_hop]]", "[[next_hop]]\nmtu = 1400");
    border.pass_both_ways(&[("firewall", &open), ("lpm-router", &narrow)], "shared");
    let directions = [
        (&border.inside, OUTSIDE, 1472),
        (&border.outside, INSIDE, 1472),
        (&border.inside, OUTSIDE_V6, 1452),
        (&border.outside, INSIDE_V6, 1452),
    ];
    for (from, to, payload) in directions {
        // A packet of 1500 bytes, which must not be fragmented.
        let mut command = from.command("ping");
        command.args(["-c", "1", "-W", "5", "-M", "do", "-s", &payload.to_string(), to]);
        let said = String::from_utf8_lossy(&output(&mut command).stdout).into_owned();
        assert!(said.contains("mtu = 1400") || said.contains("mtu=1400"), "{said}");
        let route = run(from.command("ip").args(["route", "get", to]));
        assert!(route.contains("mtu 1400"), "{route}");
        pings(from, 3, &format!("-i 0.05 -M do -s {} {to}", payload - 100)).assert_all(3);
    }
}

/// Checks that hosts inside reach those outside over IPv6, by way of the router, and none of these gets in.
fn ipv6_passes(border: &Border) {
    border.pass_both_ways(&[("firewall", FIREWALL), ("lpm-router", &Border::router())], "shared");
    pings(&border.inside, 5, &format!("-i 0.05 {OUTSIDE_V6}")).assert_all(5);
    for more in ["", " --reverse"] {
        assert_tcp_flows(&border.inside, &border.outside, OUTSIDE_V6, more);
    }
    assert_eq!(ping(&border.outside, &format!("-c 3 -i 0.05 -W 1 {INSIDE_V6}")).received, 0);
    let mut command = border.inside.command("traceroute");
    let said = run(command.args(["-6", "-n", "-q", "1", "-w", "3", "-m", "5", OUTSIDE_V6]));
    assert!(said.contains(ROUTER_V6) && said.contains(OUTSIDE_V6), "{said}");
}

#[test]
fn ipv6_passes_firewall_and_router_and_no_host_outside_gets_in() {
    ipv6_passes(&Border::new());
}

#[test]
fn ipv6_passes_in_vlans_too() {
    let mut border = Border::in_vlan(100);
    ipv6_passes(&border);
    let status = border.node.cli().status();
    let known = status["neighbors"].as_array().expect("a list");
    assert!(!known.is_empty() && known.iter().all(|neighbor| neighbor["vlan"] == 100), "{known:?}");
    assert!(border.tagged.iter_mut().all(TaggedCable::all_were_tagged), "frames of the node came without the tag");
}

#[test]
fn two_networks_in_vlans_are_connected_as_untagged_ones_are() {
    let mut border = guard(Border::in_vlan(100));
    pings(&border.inside, 5, &format!("-i 0.05 {OUTSIDE}")).assert_all(5);
    assert_tcp_flows(&border.inside, &border.outside, OUTSIDE, "");
    assert_eq!(ping(&border.outside, &format!("-c 3 -i 0.05 -W 1 {SHARED}")).received, 0);
    let said = run(border.inside.command("traceroute").args(["-n", "-q", "1", "-w", "3", "-m", "5", OUTSIDE]));
    assert!(said.contains(ROUTER) && said.contains(OUTSIDE), "{said}");
    let status = border.node.cli().status();
    let known: Vec<_> = status["neighbors"].as_array().expect("a list").iter().collect();
    assert!(known.iter().all(|neighbor| neighbor["vlan"] == 100 && neighbor["state"] == "known"), "{known:?}");
    assert_eq!(known.len(), 2);
    assert!(border.tagged.iter_mut().all(TaggedCable::all_were_tagged), "frames of the node came without the tag");
}

#[test]
fn a_sender_to_a_closed_port_gets_the_icmp_error() {
    let border = guarded();
    let told = border.inside.inside(|| {
        let socket = UdpSocket::bind((INSIDE, 0)).expect("a socket");
        socket.connect((OUTSIDE, 9)).expect("a route");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        socket.send(b"hello").expect("it is sent");
        socket.recv(&mut [0; 16]).map_err(|error| error.kind())
    });
    assert_eq!(told, Err(ErrorKind::ConnectionRefused));
}

#[test]
fn a_rule_for_hosts_outside_lets_them_in_through_the_same_chain() {
    let border = Border::new();
    let web = format!(
        "{FIREWALL}[[rule]]\naction = \"allow\"\ndirection = \"in\"\nprotocol = \"tcp\"\nports = [{HTTP_PORT}]\n"
    );
    border.pass_both_ways(&[("firewall", &web), ("lpm-router", &Border::router())], "shared");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("page"), "hello").expect("a file");
    let mut server = Server::new(&border.inside, folder.path());
    assert_eq!(run(&mut curl(&border.outside, &format!("http://{INSIDE}:{HTTP_PORT}/page"))), "hello");
    assert_eq!(server.client(), OUTSIDE);
    assert_eq!(ping(&border.outside, &format!("-c 2 -i 0.05 -W 1 {INSIDE}")).received, 0);
    // A packet with too small a TTL is answered by the router, the first hop that it reaches.
    let expired = ping(&border.outside, &format!("-c 2 -i 0.05 -W 1 -t 1 {INSIDE}"));
    assert_eq!((expired.received, expired.errors), (0, 2), "{expired:?}");
}

#[test]
fn addresses_of_the_inside_that_come_from_outside_are_known_to_be_forged() {
    const FORGED: &str = "10.79.0.77";
    let border = Border::new();
    border.outside.ip(&format!("address add {FORGED}/32 dev {INTERFACE}"));
    border.pass_both_ways(&[("firewall", FIREWALL), ("lpm-router", &Border::router())], "shared");
    ping(&border.inside, &format!("-c 3 -i 0.05 -W 2 {OUTSIDE}")).assert_all(3);
    let forged = ping(&border.outside, &format!("-c 3 -i 0.05 -W 1 -I {FORGED} {INSIDE}"));
    assert_eq!(forged.received, 0, "{forged:?}");
    until("count of forged packets", SOON, || {
        let metrics = border.node.cli().run(&["metrics", "-A"]);
        let of_spoofed = |line: &&str| line.contains("firewall_packets_denied_total{") && line.contains("\"spoofed\"");
        metrics.lines().find(of_spoofed).filter(|line| !line.ends_with(" 0")).map(|_| ())
    });
}

#[test]
fn each_client_inside_has_an_instance_of_its_own_that_its_answers_find() {
    let border = Border::new();
    border.pass_both_ways(&[("firewall", FIREWALL), ("lpm-router", &Border::router())], "per-client");
    for address in [INSIDE, INSIDE_TOO] {
        pings(&border.inside, 4, &format!("-i 0.05 -I {address} {OUTSIDE}")).assert_all(4);
    }
    assert_eq!(received(&border), [8, 8, 8, 8], "two of each stage, for requests and answers");
    // A flow that a host outside begins also goes to the client's instance.
    assert_eq!(ping(&border.outside, &format!("-c 2 -i 0.05 -W 1 {INSIDE}")).received, 0);
    assert_eq!(received(&border), [8, 10, 8, 10]);
}
