//! Paths with a smaller MTU than the link's: what routers report, and what of that is believed.
#![cfg(feature = "net")]

mod segments;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use pinion_sdk::headers::{Ip, macs};
use pinion_sdk::net::testing::{Client, Towards};
use pinion_sdk::testing::Frame;
use segments::{Echoes, at_v4, at_v6, echoes, pattern, v4};

const ETHERNET_HEADER: usize = 14;
/// The router's addresses.
const ROUTER_V4: &str = "10.0.9.9";
const ROUTER_V6: &str = "fd99::1";

/// A router on the way to the clients that forwards no packet of more than `mtu` bytes.
struct Narrows {
    /// The packets that it has not forwarded.
    refused: Rc<RefCell<Vec<Vec<u8>>>>,
    /// The longest packet that it has forwarded.
    longest: Rc<Cell<usize>>,
}

impl Narrows {
    fn on(network: &mut Echoes, mtu: usize) -> Self {
        let narrows = Self { refused: Rc::default(), longest: Rc::default() };
        let (refused, longest) = (Rc::clone(&narrows.refused), Rc::clone(&narrows.longest));
        network.impair(move |towards, frames| {
            if towards == Towards::Function {
                return frames;
            }
            let is_small = |frame: &Vec<u8>| frame.len() - ETHERNET_HEADER <= mtu;
            let (small, large): (Vec<_>, Vec<_>) = frames.into_iter().partition(is_small);
            refused.borrow_mut().extend(large);
            let most = small.iter().map(|frame| frame.len() - ETHERNET_HEADER).max().unwrap_or(0);
            longest.set(longest.get().max(most));
            small
        });
        narrows
    }

    /// Reports the packets that were refused, with this next-hop MTU.
    fn report(&self, network: &mut Echoes, said: usize) {
        for refused in self.refused.take() {
            network.deliver(&too_big(&refused, said as u16, |_| ()));
        }
    }
}

/// The error of a router about a frame; `change` may change what it quotes.
fn too_big(frame: &[u8], mtu: u16, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let is_v4 = Ip::of(frame).unwrap().addresses.source().is_ipv4();
    error(frame, if is_v4 { (3, 4) } else { (2, 0) }, mtu, change)
}

/// The same with another type and code.
fn error(frame: &[u8], (kind, code): (u8, u8), mtu: u16, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ip = Ip::of(frame).unwrap();
    let (is_v4, packet) = (ip.addresses.source().is_ipv4(), ip.packet(frame).unwrap());
    let mut quoted = packet[..if is_v4 { 20 + 8 } else { 40 + 20 }].to_vec();
    change(&mut quoted);
    let ([high, low], back_to) = (mtu.to_be_bytes(), ip.addresses.source());
    let router = if is_v4 { ROUTER_V4 } else { ROUTER_V6 };
    let macs = macs(frame).unwrap().reversed();
    let error = Frame::icmp(router, back_to, kind, code, [0, 0, high, low]).payload(&quoted);
    error.macs(macs.source, macs.destination).bytes()
}

fn connected(network: &mut Echoes, from: IpAddr, to: SocketAddr) -> Client {
    let client = network.connect(from, to);
    network.settle();
    assert!(network.is_connected(client));
    client
}

/// Sends bytes, and collects the echo while a router reports what does not fit, saying `said`. Returns it, or what came of it in a minute.
fn echoed_through(network: &mut Echoes, narrows: &Narrows, client: Client, said: usize) -> Vec<u8> {
    let mut received = Vec::new();
    for _ in 0..600 {
        network.let_pass_ns(100_000_000);
        narrows.report(network, said);
        received.extend(network.received(client));
    }
    received
}

#[test]
fn data_passes_a_narrow_path_once_its_router_has_said_how_narrow_it_is() {
    for (from, to, mtu) in [(v4(1), at_v4(7), 1000), ("fd77::11".parse().unwrap(), at_v6(7), 1280)] {
        let mut network = echoes();
        let client = connected(&mut network, from, to);
        let narrows = Narrows::on(&mut network, mtu);
        let bytes = pattern(100_000);
        network.send(client, &bytes);
        assert!(echoed_through(&mut network, &narrows, client, mtu) == bytes, "{mtu}");
        assert_eq!(narrows.longest.get(), mtu, "as much is sent as the path takes");
    }
}

#[test]
fn a_router_that_does_not_say_how_narrow_it_is_is_tried_with_less_and_less() {
    let mut network = echoes();
    let client = connected(&mut network, v4(1), at_v4(7));
    let narrows = Narrows::on(&mut network, 1006);
    let bytes = pattern(50_000);
    network.send(client, &bytes);
    assert!(echoed_through(&mut network, &narrows, client, 0) == bytes);
    assert_eq!(narrows.longest.get(), 1006);
}

#[test]
fn no_report_makes_packets_smaller_than_every_path_takes() {
    for (from, to, least) in [(v4(1), at_v4(7), 552), ("fd77::11".parse().unwrap(), at_v6(7), 1280)] {
        let mut network = echoes();
        let client = connected(&mut network, from, to);
        let narrows = Narrows::on(&mut network, least);
        let bytes = pattern(20_000);
        network.send(client, &bytes);
        assert!(echoed_through(&mut network, &narrows, client, 68) == bytes);
        assert_eq!(narrows.longest.get(), least);
    }
}

#[test]
fn a_report_that_quotes_no_segment_on_its_way_changes_nothing() {
    let changes: [fn(&mut [u8]); 4] = [
        |quoted| quoted[24] ^= 0x40, // another sequence number
        |quoted| quoted[20] ^= 1,    // another port
        |quoted| quoted[19] ^= 1,    // another peer
        |quoted| quoted[9] = 17,     // another protocol
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut network = echoes();
        let client = connected(&mut network, v4(1), at_v4(7));
        let narrows = Narrows::on(&mut network, 1500);
        network.send(client, &pattern(10_000));
        network.settle();
        let kept: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let seen = Rc::clone(&kept);
        network.impair(move |towards, frames| {
            if towards == Towards::Clients {
                seen.borrow_mut().extend(frames);
                return Vec::new();
            }
            frames
        });
        network.send(client, &pattern(10_000));
        network.settle();
        let lost = kept.take();
        assert!(!lost.is_empty());
        for frame in &lost {
            network.deliver(&too_big(frame, 600, change));
        }
        let narrows_again = Narrows::on(&mut network, 1500);
        network.let_pass_ns(5_000_000_000);
        network.received(client);
        assert_eq!((narrows.longest.get(), narrows_again.longest.get()), (1500, 1500), "change {number}");
    }
}

#[test]
fn a_damaged_report_changes_nothing() {
    let mut network = echoes();
    let client = connected(&mut network, v4(1), at_v4(7));
    let narrows = Narrows::on(&mut network, 1400);
    network.send(client, &pattern(10_000));
    // Before smaller packets are tried without a report.
    for _ in 0..12 {
        network.let_pass_ns(500_000_000);
        for refused in narrows.refused.take() {
            let mut report = too_big(&refused, 1400, |_| ());
            report[ETHERNET_HEADER + 20 + 7] ^= 1;
            network.deliver(&report);
        }
    }
    assert!(network.received(client).len() < 10_000, "nothing of more than 1400 bytes can pass");
}

#[test]
fn data_passes_a_path_that_swallows_big_packets_without_a_word() {
    for (from, to, mtu, passes) in [
        (v4(1), at_v4(7), 1300, 1280),
        (v4(1), at_v4(7), 600, 552),
        ("fd77::11".parse().unwrap(), at_v6(7), 1400, 1280),
    ] {
        let mut network = echoes();
        let client = connected(&mut network, from, to);
        let narrows = Narrows::on(&mut network, mtu);
        let bytes = pattern(20_000);
        network.send(client, &bytes);
        let mut received = Vec::new();
        for _ in 0..60 {
            network.let_pass_ns(1_000_000_000);
            received.extend(network.received(client));
        }
        assert!(received == bytes, "{} bytes through {mtu}", received.len());
        assert_eq!(narrows.longest.get(), passes);
    }
}

#[test]
fn a_segment_that_is_lost_twice_does_not_make_packets_smaller() {
    let mut network = echoes();
    let client = connected(&mut network, v4(1), at_v4(7));
    let narrows = Narrows::on(&mut network, 600);
    let bytes = pattern(50_000);
    network.send(client, &bytes);
    // Sent at once, and again after a second.
    network.let_pass_ns(1_500_000_000);
    assert!(!narrows.refused.take().is_empty());
    let narrows = Narrows::on(&mut network, 1500);
    network.let_pass_ns(10_000_000_000);
    assert!(network.received(client) == bytes);
    assert_eq!(narrows.longest.get(), 1500);
}

/// RFC 9293, section 3.9.2.2; RFC 5461, section 4: routes come and go.
#[test]
fn no_other_error_of_a_router_or_a_host_ends_a_connection() {
    let v4 = [(3, 0), (3, 1), (3, 2), (3, 3), (3, 9), (3, 13), (4, 0), (11, 0), (11, 1), (12, 0)];
    let v6 = [(1, 0), (1, 1), (1, 3), (1, 4), (3, 0), (4, 1)];
    let clients: [(IpAddr, SocketAddr); 2] = [(self::v4(1), at_v4(7)), ("fd77::11".parse().unwrap(), at_v6(7))];
    for ((from, to), kinds) in clients.into_iter().zip([&v4[..], &v6]) {
        let mut network = echoes();
        let client = connected(&mut network, from, to);
        let bytes = pattern(3_000);
        for of_kind in kinds {
            // Each about segments that are on their way.
            let narrows = Narrows::on(&mut network, 0);
            network.send(client, &bytes);
            network.settle();
            let refused = narrows.refused.take();
            assert!(!refused.is_empty());
            for frame in refused {
                network.deliver(&error(&frame, *of_kind, 0, |_| ()));
            }
            Narrows::on(&mut network, 1500);
            let mut received = Vec::new();
            network.until(|network| {
                received.extend(network.received(client));
                assert!(!network.is_closed(client), "{of_kind:?} from {from}");
                received.len() >= bytes.len()
            });
            assert!(received == bytes);
        }
    }
}
