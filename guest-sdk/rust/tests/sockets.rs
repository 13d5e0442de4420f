//! Several ports, datagrams and other packets in one service: `pinion_sdk::net` beside single connections.
#![cfg(feature = "net")]

use std::io::Write;
use std::net::SocketAddr;

use pinion_sdk::net::testing::Network;
use pinion_sdk::net::{Datagram, NoSlot, Server, Service, Settings, Sockets, Stream, UdpPeer};
use pinion_sdk::testing::{Outcome, Verdict};
use pinion_sdk::wire::{Ipv4Packet, Ipv6Packet, UdpPacket};
use pinion_sdk::{InitError, Packet, clock};

const CLIENT_V4: &str = "10.0.0.1:5000";
const CLIENT_V6: &str = "[fd00::1]:5000";
const SERVICE_V4: &str = "10.0.0.2:53";
const SERVICE_V6: &str = "[fd00::2]:53";
/// Between two datagrams of a long answer for which there was no slot.
const PAUSE_NS: u64 = 1_000_000;

/// Echoes datagrams, `n` times if they consist of the number `n`; tells connections their port; counts what else comes.
#[derive(Default)]
struct Mixed {
    owed: Vec<(UdpPeer, usize)>,
    next_ns: Option<u64>,
    others: usize,
}

impl Mixed {
    fn pay(&mut self, sockets: Sockets<'_>) {
        for (peer, left) in &mut self.owed {
            while *left > 0 && peer.send_with(sockets.slots(), |bytes| number(*left, bytes)) != Err(NoSlot) {
                *left -= 1;
            }
        }
        self.owed.retain(|(_, left)| *left > 0);
        self.next_ns = (!self.owed.is_empty()).then(|| clock::now_ns() + PAUSE_NS);
    }
}

fn number(number: usize, bytes: &mut [u8]) -> Option<usize> {
    let text = number.to_string();
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Some(text.len())
}

impl Service for Mixed {
    type Connection = ();

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let ports = |text: &str| text.split_whitespace().map(|port| port.parse().unwrap()).collect();
        let text = str::from_utf8(config).unwrap();
        let (tcp, udp) = text.split_once('/').unwrap_or(("80 8080", "53 5353"));
        Ok((Self::default(), Settings { tcp_ports: ports(tcp), udp_ports: ports(udp), ..Settings::default() }))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) {
        write!(stream, "{}", stream.local().port()).unwrap();
    }

    fn ready(&mut self, (): &mut (), stream: &mut Stream<'_>) {
        stream.close();
    }

    fn datagram(&mut self, datagram: Datagram<'_>, sockets: Sockets<'_>) {
        let times = str::from_utf8(datagram.payload()).ok().and_then(|text| text.parse().ok());
        if let Some(times) = times {
            self.owed.push((datagram.peer(), times));
            return self.pay(sockets);
        }
        let payload = datagram.payload().to_vec();
        match &payload[..] {
            b"too long" => assert!(!datagram.answer(&[0; 1_500]), "it does not fit into a packet"),
            b"silence" => assert!(!datagram.answer_with(|_| None)),
            _ => assert!(datagram.answer(&payload)),
        }
    }

    fn packet(&mut self, packet: Packet<'_>, sockets: Sockets<'_>) {
        self.others += 1;
        sockets.refuse(packet);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.next_ns
    }

    fn expire(&mut self, sockets: Sockets<'_>) {
        self.pay(sockets);
    }
}

fn network() -> Network<Server<Mixed>> {
    Network::new(b"").unwrap()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A frame with a datagram between two ends, whose IP packet `change` may damage afterwards.
fn frame(from: &str, to: &str, payload: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let mut udp = vec![0; 8 + payload.len()];
    let mut datagram = UdpPacket::new_unchecked(&mut udp);
    datagram.set_src_port(from.port());
    datagram.set_dst_port(to.port());
    datagram.set_len(8 + payload.len() as u16);
    datagram.payload_mut().copy_from_slice(payload);
    datagram.fill_checksum(&from.ip().into(), &to.ip().into());
    let (kind, mut ip) = match (from.ip(), to.ip()) {
        (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            let mut ip = vec![0; 20];
            let mut packet = Ipv4Packet::new_unchecked(&mut ip);
            packet.set_version(4);
            packet.set_header_len(20);
            packet.set_total_len(20 + udp.len() as u16);
            packet.set_hop_limit(7);
            packet.set_next_header(17.into());
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
            packet.fill_checksum();
            ([0x08, 0x00], ip)
        }
        (std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
            let mut ip = vec![0; 40];
            let mut packet = Ipv6Packet::new_unchecked(&mut ip);
            packet.set_version(6);
            packet.set_payload_len(udp.len() as u16);
            packet.set_hop_limit(7);
            packet.set_next_header(17.into());
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
            ([0x86, 0xdd], ip)
        }
        _ => unreachable!("ends of one version"),
    };
    ip.extend_from_slice(&udp);
    change(&mut ip);
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &kind, &ip].concat()
}

fn deliver(network: &mut Network<Server<Mixed>>, frame: &[u8]) -> Vec<Verdict> {
    network.harness.deliver(&[frame])
}

fn is_answered(frame: &[u8]) -> bool {
    deliver(&mut network(), frame).iter().any(|verdict| verdict.outcome == Outcome::Replied)
}

#[test]
fn a_service_listens_on_several_tcp_ports_and_each_connection_knows_its_own() {
    let mut network = network();
    for port in [80, 8080] {
        let client = network.connect("10.0.0.1".parse().unwrap(), ([10, 0, 0, 2], port).into());
        network.settle();
        assert_eq!(network.received(client), port.to_string().into_bytes());
    }
    let refused = network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:81".parse().unwrap());
    network.settle();
    assert!(network.is_closed(refused), "no port but those two is open");
}

#[test]
fn datagrams_to_each_port_are_answered_from_it_over_both_versions() {
    let mut network = network();
    for (from, to) in [(CLIENT_V4, SERVICE_V4), (CLIENT_V6, SERVICE_V6), (CLIENT_V4, "10.9.9.9:5353")] {
        for payload in [&b""[..], b"hello", &[7; 1452]] {
            assert_eq!(network.ask(address(from), address(to), payload), [payload]);
        }
        for payload in [&b"too long"[..], b"silence"] {
            assert_eq!(network.ask(address(from), address(to), payload), Vec::<Vec<u8>>::new());
        }
    }
}

#[test]
fn an_answer_has_headers_of_its_own_and_the_vlan_tags_and_station_of_the_question() {
    let plain = frame(CLIENT_V4, SERVICE_V4, b"hello", |_| ());
    // A tag, and an IP header with 4 bytes of options.
    let mut ip = plain[14..].to_vec();
    ip.splice(20..20, [1, 1, 1, 0]);
    let mut packet = Ipv4Packet::new_unchecked(&mut ip[..]);
    packet.set_header_len(24);
    packet.set_total_len(24 + 8 + 5);
    packet.set_dscp(10);
    packet.fill_checksum();
    let tagged = [&plain[..12], &[0x81, 0, 0x60, 5], &plain[12..14], &ip].concat();
    let answer = deliver(&mut network(), &tagged).remove(0);
    assert!(answer.completes_checksums);
    assert_eq!(answer.bytes[..18], [&tagged[6..12], &tagged[..6], &tagged[12..18]].concat());
    assert_eq!(answer.bytes[18..30], [0x45, 0, 0, 33, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    assert_eq!(
        answer.bytes[30..],
        [&[10, 0, 0, 2, 10, 0, 0, 1, 0, 53, 0x13, 0x88, 0, 13, 0, 0][..], b"hello"].concat()
    );
}

#[test]
fn damaged_datagrams_and_those_that_cannot_be_answered_get_no_answer() {
    let v4 = |change: &dyn Fn(&mut Vec<u8>)| frame(CLIENT_V4, SERVICE_V4, b"hello", |ip| change(ip));
    let v6 = |change: &dyn Fn(&mut Vec<u8>)| frame(CLIENT_V6, SERVICE_V6, b"hello", |ip| change(ip));
    assert!(is_answered(&v4(&|_| ())) && is_answered(&v6(&|_| ())));
    assert!(!is_answered(&v4(&|ip| ip[30] ^= 1)), "a wrong checksum");
    assert!(!is_answered(&v6(&|ip| ip[50] ^= 1)), "a wrong checksum over IPv6");
    assert!(!is_answered(&v4(&|ip| ip[8] ^= 1)), "a wrong checksum of the header");
    assert!(is_answered(&v4(&|ip| ip[26..28].fill(0))), "over IPv4 there need be no checksum");
    assert!(!is_answered(&v6(&|ip| ip[46..48].fill(0))), "over IPv6 there must be one");
    assert!(!is_answered(&v4(&|ip| ip[24..26].copy_from_slice(&[0, 200]))), "longer than its packet");
    assert!(!is_answered(&frame("10.0.0.1:0", SERVICE_V4, b"hello", |_| ())), "no port to answer to");
    assert!(!is_answered(&frame("224.0.0.1:5000", SERVICE_V4, b"hello", |_| ())), "from a group");
    assert!(!is_answered(&frame(CLIENT_V4, "255.255.255.255:53", b"hello", |_| ())), "to all");
    assert!(!is_answered(&frame(SERVICE_V4, SERVICE_V4, b"hello", |_| ())), "from the service itself");
}

#[test]
fn the_payload_ends_where_the_datagram_does_and_not_where_its_packet_does() {
    let longer = frame(CLIENT_V4, SERVICE_V4, b"hello", |ip| {
        ip[24..26].copy_from_slice(&[0, 10]);
        ip[26..28].fill(0);
    });
    let answer = deliver(&mut network(), &longer).remove(0);
    assert_eq!(answer.bytes[42..], *b"he");
}

#[test]
fn what_is_for_no_socket_comes_to_the_service_and_tcp_is_refused_by_default() {
    let mut network = network();
    let other_port = frame(CLIENT_V4, "10.0.0.2:54", b"hello", |_| ());
    let fragment = frame(CLIENT_V4, SERVICE_V4, b"hello", |ip| {
        ip[6] = 0x20;
        Ipv4Packet::new_unchecked(&mut ip[..]).fill_checksum();
    });
    for frame in [&other_port[..], &fragment, &[0; 60], b"short"] {
        assert!(deliver(&mut network, frame).iter().all(|verdict| verdict.outcome == Outcome::Dropped));
    }
    assert_eq!(network.harness.function().service().others, 4);
    let refused = network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:81".parse().unwrap());
    network.settle();
    assert!(network.is_closed(refused));
    assert_eq!(network.harness.function().service().others, 5);
}

#[test]
fn an_answer_of_more_datagrams_than_slots_goes_on_when_these_come_back() {
    const COUNT: usize = 500;
    let mut network = network();
    let question = frame(CLIENT_V4, SERVICE_V4, COUNT.to_string().as_bytes(), |_| ());
    let mut verdicts = deliver(&mut network, &question);
    let is_reply = |verdict: &Verdict| verdict.outcome == Outcome::Replied;
    let at_once = verdicts.iter().filter(|verdict| is_reply(verdict)).count();
    assert!((1..COUNT).contains(&at_once), "{at_once} at once");
    while network.harness.function().service().next_ns.is_some() {
        verdicts.extend(network.harness.let_pass_ns(PAUSE_NS));
    }
    let answers = verdicts.iter().filter(|verdict| is_reply(verdict));
    let numbers: Vec<usize> = answers.map(|it| str::from_utf8(&it.bytes[42..]).unwrap().parse().unwrap()).collect();
    assert!(numbers.iter().rev().copied().eq(1..=COUNT), "{numbers:?}");
}

#[test]
fn settings_with_a_wrong_port_or_too_many_are_refused() {
    let refusal = |config: &str| Network::<Server<Mixed>>::new(config.as_bytes()).err().map(|error| error.to_string());
    assert_eq!(refusal("80/53"), None);
    assert_eq!(refusal("/53"), None);
    assert_eq!(refusal("/"), None, "it may connect itself");
    assert_eq!(refusal("80 0/").unwrap(), "a TCP port is 0, and must be 1 to 65535");
    let many: String = (1..=17).map(|port| format!("{port} ")).collect();
    assert_eq!(refusal(&format!("/{many}")).unwrap(), "the number of UDP ports is 17, and must be 0 to 16");
}
