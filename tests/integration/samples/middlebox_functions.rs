//! Policer, monitor, delay, balancer and macswap with the kernel's own traffic. Each is compared with an independent figure: what `iperf3`
//! and `ping` measure, what the sender counted, or what backends saw.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pinion_tests::machine::cores::{stay_on, two_cores};
use pinion_tests::network::bed::{Bed, Device};
use pinion_tests::network::border::{TENANT, chain_both_ways};
use pinion_tests::network::inline::{INTERFACE, Inline, LAN_MAC, WAN_MAC};
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::frames::watch;
use pinion_tests::traffic::iperf::iperf;
use pinion_tests::traffic::ping::pings;
use pinion_tests::until::{SOON, until};

/// The length of the Ethernet, IPv4 and UDP headers of a datagram.
const HEADERS: u64 = 14 + 20 + 8;

/// Starts a node between two hosts. All their frames pass this chain: forwards from one side, backwards from the other.
#[track_caller]
fn between(stages: &[(&str, &str)]) -> Inline {
    let inline = Inline::new(Device::AfPacket);
    let mut manifest = chain_both_ways(stages, ["lan", "wan"], "");
    for port in ["lan", "wan"] {
        manifest = manifest.with(format_args!(
            "[[rule]]\nname = \"from-{port}\"\npolicy = \"shared\"\nchain = \"between\"\nmatch = {{ port = {port:?}, source = \"0.0.0.0/0\" }}\n"
        ));
    }
    inline.node.apply(manifest.text());
    inline
}

/// Returns a count of all functions together.
fn count_of_functions(inline: &Inline, name: &str) -> u64 {
    let fwps = inline.node.cli().get("fwps");
    fwps.iter().map(|fwp| fwp["counters"][name].as_u64().expect("a count")).sum()
}

#[test]
fn a_policer_passes_its_rate_of_twice_as_much_and_all_of_half_as_much() {
    const RATE: u64 = 1_250_000;
    // A second's worth, so that the flow loses nothing of its rate while the machine keeps the node or the sender from running.
    const BURST: u64 = RATE;
    const LENGTH: u64 = 1_000;
    const SECONDS: u64 = 4;
    // What iperf3 says on its own connection.
    const BESIDE: u64 = 64 << 10;
    let config = format!("rate_bytes_per_s = {RATE}\nburst_bytes = {BURST}\nper = \"flow\"\n");
    let inline = between(&[("policer", &config)]);
    let (left, right) = (&inline.left, &inline.right);
    // The datagrams with their headers arrive at this percentage of the rate.
    let stream = |percent: u64, more: &str| {
        let bits_per_s = RATE * 8 * percent / 100 * LENGTH / (LENGTH + HEADERS);
        let words = format!("--udp --bitrate {bits_per_s} --length {LENGTH} --time {SECONDS}{more}");
        iperf(&left.namespace, &right.namespace, &right.address, &words)
    };
    for more in ["", " --reverse"] {
        let passed = || count_of_functions(&inline, "sent_bytes");
        let (start, before) = (Instant::now(), passed());
        let moved = stream(200, more);
        let passed = passed() - before;
        // Its rate for as long as datagrams may have come, and no less than it lets through at once. How much less than the rate a sender
        // gets that is kept from its core now and then, its own tests say.
        let most = RATE * start.elapsed().as_millis() as u64 / 1000 + BURST + BESIDE;
        println!("{passed} bytes of at most {most} have passed{more}: {moved:?}");
        assert!((BURST..=most).contains(&passed), "{passed}, not {BURST} to {most}{more}: {moved:?}");
        let dropped = || count_of_functions(&inline, "dropped_by_guest");
        let before = dropped();
        let moved = stream(50, more);
        // A machine without time may lose some elsewhere.
        assert!(moved.datagrams > 0, "{moved:?}");
        assert_eq!(dropped(), before, "at half the rate{more}: {moved:?}");
    }
}

#[test]
fn a_monitor_counts_what_each_sender_has_sent() {
    let inline = between(&[("monitor", "every 1s")]);
    let (left, right) = (&inline.left, &inline.right);
    // Source, destination, number of datagrams, and the length of each.
    let flows =
        [(left, right, 4001_u16, 300_u64, 100_usize), (left, right, 4002, 120, 1_200), (right, left, 4003, 77, 333)];
    let to_port = 7000;
    for (from, to, port, count, len) in flows {
        let sink = to.namespace.inside(|| UdpSocket::bind((to.address.as_str(), to_port)).expect("a socket"));
        let source = from.namespace.inside(|| UdpSocket::bind((from.address.as_str(), port)).expect("a socket"));
        sink.set_read_timeout(Some(SOON)).expect("a timeout");
        for _ in 0..count {
            source.send_to(&vec![0x55; len], (to.address.as_str(), to_port)).expect("it is sent");
            // Each arrives before the next is sent, so none is lost on the way.
            assert_eq!(sink.recv(&mut [0; 2048]).expect("it passes"), len);
        }
    }
    for (from, to, port, count, len) in flows {
        let flow = format!("udp {} port {port} to {} port {to_port}: ", from.address, to.address);
        let total = format!("in all {count} packets, {} bytes", count * (len as u64 + HEADERS));
        until(&format!("report that says {flow}{total}"), SOON, || {
            let said = inline.node.cli().run(&["logs", "--tenant", TENANT]);
            said.lines().any(|line| line.contains(&flow) && line.contains(&total)).then_some(())
        });
    }
}

#[test]
fn delays_on_both_ways_show_in_the_time_that_ping_measures() {
    const DELAY_MS: f64 = 25.0;
    let inline = between(&[("delay", "25ms")]);
    let (left, right) = (&inline.left, &inline.right);
    let summary = pings(&left.namespace, 20, &format!("-i 0.05 {}", right.address));
    summary.assert_all(20);
    // The minimum, as additional time that the machine takes is not the delay's.
    let min_ms = summary.min_ms.expect("it was answered");
    assert!((2.0 * DELAY_MS..3.0 * DELAY_MS).contains(&min_ms), "{min_ms} ms");
    // Many datagrams at once: each is delayed as if it were alone, and their order is kept.
    let moved =
        iperf(&left.namespace, &right.namespace, &right.address, "--udp --bitrate 4M --length 1000 --blockcount 1000");
    assert_eq!((moved.datagrams, moved.lost), (1000, 0), "{moved:?}");
}

#[test]
fn macswap_sends_frames_back_with_only_the_mac_addresses_changed() {
    const COUNT: usize = 50;
    let inline = Inline::new(Device::AfPacket);
    let (left, right) = (&inline.left, &inline.right);
    let manifest = Manifest::of(TENANT).module("macswap", &build::sample("macswap")).chain("swap", "macswap", "");
    let rule = "[[rule]]\nname = \"udp\"\npolicy = \"shared\"\nchain = \"swap\"\nmatch = { port = \"lan\", protocol = \"udp\" }\n";
    inline.node.apply(manifest.with(rule).text());
    inline.node.await_instance(TENANT, "swap");
    let station = |mac: &str| -> Vec<u8> {
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a hardware address")).collect()
    };
    let (node, host) = (station(LAN_MAC), station(WAN_MAC));
    // The kernel shows an interface's transmitted frames as well as the received ones.
    let seen = watch(&left.namespace, INTERFACE, |arrivals| {
        // A virtual cable keeps the order of what is sent on one core to a host that is known already.
        stay_on(two_cores().0);
        let socket = UdpSocket::bind((left.address.as_str(), 4000)).expect("a socket");
        let send = |number: usize| {
            let datagram: Vec<u8> = (0..60 + 20 * number).map(|at| (at + number) as u8).collect();
            socket.send_to(&datagram, (right.address.as_str(), 7000)).expect("it is sent");
        };
        let is_udp = |frame: &[u8]| frame.len() > 23 && frame[12..14] == [8, 0] && frame[23] == 17;
        send(0);
        let mut seen = arrivals.take(2, SOON, is_udp);
        (1..COUNT).for_each(send);
        seen.extend(arrivals.take(2 * COUNT - 2, SOON, is_udp));
        seen
    });
    let (sent, came): (Vec<_>, Vec<_>) = seen.into_iter().partition(|frame| frame.starts_with(&node));
    let expected: Vec<Vec<u8>> = sent.iter().map(|frame| [&host[..], &node, &frame[12..]].concat()).collect();
    assert_eq!((sent.len(), came.len()), (COUNT, COUNT));
    assert!(came == expected, "frames came back otherwise than they were sent");
}

/// The service's address and port.
const SERVICE: &str = "10.77.0.100";
const SERVICE_PORT: u16 = 7000;
const BACKENDS: [&str; 3] = ["web1", "web2", "web3"];

/// A host with the service's address on its loopback, for which it answers no ARP. It answers each datagram with its name.
struct Backend {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _namespace: Namespace,
}

impl Backend {
    #[track_caller]
    fn new(bed: &Bed, number: usize) -> Self {
        let (name, port) = (BACKENDS[number], format!("backend{number}"));
        let namespace = Namespace::new(name);
        namespace.connect("eth0", bed.switch(), &port);
        bed.switch().ip(&format!("link set {port} master bridge0"));
        namespace.ip(&format!("link set eth0 address {}", mac(number)));
        namespace.finish_frames("eth0");
        namespace.ip(&format!("address add 10.77.0.{}/24 dev eth0", 50 + number));
        namespace.ip(&format!("address add {SERVICE}/32 dev lo"));
        let socket = namespace.inside(|| {
            for (setting, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
                std::fs::write(format!("/proc/sys/net/ipv4/conf/all/{setting}"), value).expect("root may set it");
            }
            UdpSocket::bind((SERVICE, SERVICE_PORT)).expect("a socket")
        });
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let serve = move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((_, client)) = socket.recv_from(&mut [0; 64]) {
                    socket.send_to(name.as_bytes(), client).expect("it is sent");
                }
            }
        };
        Self { stop, thread: Some(std::thread::spawn(serve)), _namespace: namespace }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn mac(number: usize) -> String {
    format!("02:70:69:6e:00:4{number}")
}

/// Asks once on each of these flows; returns the name of the backend that answers each.
#[track_caller]
fn answers(flows: &[UdpSocket]) -> Vec<String> {
    let ask = |socket: &UdpSocket| {
        let mut answer = [0; 64];
        socket.send(b"who?").expect("it is sent");
        let len = socket.recv(&mut answer).expect("a backend answers");
        String::from_utf8_lossy(&answer[..len]).into_owned()
    };
    flows.iter().map(ask).collect()
}

#[test]
fn a_balancer_spreads_flows_over_backends_that_answer_directly_and_moves_only_those_of_a_removed_one() {
    const FLOWS: usize = 300;
    let bed = Bed::with_addresses(Device::AfPacket, &[SERVICE]);
    let backends: Vec<Backend> = (0..BACKENDS.len()).map(|number| Backend::new(&bed, number)).collect();
    let backend = |(number, name): (usize, &&str)| format!("backend {name} {}", mac(number));
    // With the client's own MAC address as source, the switch would learn the node's port as the client's.
    let status = bed.node.cli().status();
    let own = format!("mac {}", status["ports"][0]["mac"].as_str().expect("a port has an address"));
    let lines: Vec<String> = BACKENDS.iter().enumerate().map(backend).chain([own]).collect();
    let manifest = Manifest::of(TENANT).module("balancer", &build::sample("balancer"));
    let manifest = manifest.configured_chain("web", "balancer", &lines.join("\\n")).with(format_args!(
        "[[rule]]\nname = \"web\"\npolicy = \"shared\"\nchain = \"web\"\nmatch = {{ destination = \"{SERVICE}\", protocol = \"udp\" }}\n"
    ));
    bed.node.apply(manifest.text());
    let client = &bed.clients[0];
    client.namespace.finish_frames("eth0");
    let flows: Vec<UdpSocket> = client.namespace.inside(|| {
        let flow = |_| {
            let socket = UdpSocket::bind((client.address.as_str(), 0)).expect("a socket");
            socket.connect((SERVICE, SERVICE_PORT)).expect("a route");
            socket.set_read_timeout(Some(SOON)).expect("a timeout");
            socket
        };
        (0..FLOWS).map(flow).collect()
    });

    let first = answers(&flows);
    let spread = first.iter().fold(BTreeMap::<&str, usize>::new(), |mut spread, name| {
        *spread.entry(name).or_default() += 1;
        spread
    });
    println!("{spread:?}");
    // 100 each, within four standard deviations of a random choice.
    let is_even = |name: &&str| (67..=133).contains(&spread.get(name).copied().unwrap_or(0));
    assert!(BACKENDS.iter().all(is_even), "{spread:?}");
    assert_eq!(answers(&flows), first, "a flow stays with its backend");
    // The answers did not pass the balancer.
    let received = bed.node.cli().serving_fwps()[0]["counters"]["received"].as_u64();
    assert_eq!(received, Some(2 * FLOWS as u64));

    let said = bed.node.cli().caller("demo/web").call(b"down web1");
    assert_eq!(String::from_utf8_lossy(&said).trim(), "ok");
    let after = answers(&flows);
    for (before, after) in first.iter().zip(&after) {
        assert!(after != "web1" && (after == before || before == "web1"), "{before} became {after}");
    }
    let others = after.iter().zip(&first).filter(|(_, before)| *before == "web1");
    let to_second = others.clone().filter(|(after, _)| *after == "web2").count();
    println!("of the {} flows of web1 {to_second} went to web2", others.clone().count());
    assert!(to_second > 0 && to_second < others.count(), "those of one that goes are spread, too");
    drop(backends);
}
