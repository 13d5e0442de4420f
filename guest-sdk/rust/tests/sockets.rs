//! Several ports, datagrams and other packets in one service: `pinion_sdk::net` beside single connections.
#![cfg(feature = "net")]

use std::io::Write;
use std::net::SocketAddr;

use pinion_sdk::headers::Vlan;
use pinion_sdk::net::testing::Network;
use pinion_sdk::net::{Datagram, NoSlot, Server, Service, Settings, Sockets, Stream, UdpPeer};
use pinion_sdk::testing::{Frame, Outcome, Verdict};
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

/// A datagram of five bytes between two ends.
fn datagram(from: &str, to: &str) -> Frame {
    Frame::udp(from, to).payload(b"hello")
}

fn deliver(network: &mut Network<Server<Mixed>>, frame: &[u8]) -> Vec<Verdict> {
    network.harness.deliver(&[frame])
}

fn is_answered(frame: &Frame) -> bool {
    deliver(&mut network(), &frame.bytes()).iter().any(|verdict| verdict.outcome == Outcome::Replied)
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
    let tag = Vlan { id: 5, priority: 3, ..Vlan::default() };
    let tagged = datagram(CLIENT_V4, SERVICE_V4).tag(tag).ip_options(&[1, 1, 1]).dscp(10).hop_limit(7).bytes();
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
    let (v4, v6) = (datagram(CLIENT_V4, SERVICE_V4), datagram(CLIENT_V6, SERVICE_V6));
    assert!(is_answered(&v4) && is_answered(&v6));
    assert!(!is_answered(&v4.clone().checksum(1)), "a wrong checksum");
    assert!(!is_answered(&v6.clone().checksum(1)), "a wrong checksum over IPv6");
    assert!(!is_answered(&v4.clone().ip_checksum(1)), "a wrong checksum of the header");
    assert!(is_answered(&v4.clone().checksum(0)), "over IPv4 there need be no checksum");
    assert!(!is_answered(&v6.checksum(0)), "over IPv6 there must be one");
    assert!(!is_answered(&v4.message_len(200)), "longer than its packet");
    assert!(!is_answered(&datagram("10.0.0.1:0", SERVICE_V4)), "no port to answer to");
    assert!(!is_answered(&datagram("224.0.0.1:5000", SERVICE_V4)), "from a group");
    assert!(!is_answered(&datagram(CLIENT_V4, "255.255.255.255:53")), "to all");
    assert!(!is_answered(&datagram(SERVICE_V4, SERVICE_V4)), "from the service itself");
}

#[test]
fn the_payload_ends_where_the_datagram_does_and_not_where_its_packet_does() {
    let longer = datagram(CLIENT_V4, SERVICE_V4).message_len(10).checksum(0).bytes();
    let answer = deliver(&mut network(), &longer).remove(0);
    assert_eq!(answer.bytes[42..], *b"he");
}

#[test]
fn what_is_for_no_socket_comes_to_the_service_and_tcp_is_refused_by_default() {
    let mut network = network();
    let other_port = datagram(CLIENT_V4, "10.0.0.2:54").bytes();
    let fragment = datagram(CLIENT_V4, SERVICE_V4).fragment(0, true).bytes();
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
    let question = datagram(CLIENT_V4, SERVICE_V4).payload(COUNT.to_string().as_bytes()).bytes();
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

/// Closes each connection as soon as it is there, and refuses other packets once it has looked at them.
#[derive(Default)]
struct Curt {
    calls: usize,
}

impl Service for Curt {
    type Connection = ();

    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self::default(), Settings { tcp_ports: vec![80], ..Settings::default() }))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) {
        stream.write_all(b"busy").unwrap();
        stream.close();
    }

    fn ready(&mut self, (): &mut (), _stream: &mut Stream<'_>) {
        self.calls += 1;
    }

    fn packet(&mut self, mut packet: Packet<'_>, sockets: Sockets<'_>) {
        packet.set_len(20).unwrap();
        sockets.refuse(packet);
    }
}

#[test]
fn a_connection_that_is_closed_as_soon_as_it_is_there_is_not_ready_later() {
    let mut network = Network::<Server<Curt>>::new(b"").unwrap();
    let client = network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    network.settle();
    assert_eq!(network.received(client), b"busy");
    network.send(client, b"more");
    network.close(client);
    network.settle();
    assert_eq!(network.harness.function().service().calls, 0);
}

#[test]
fn a_segment_that_was_cut_before_it_is_refused_is_dropped() {
    let mut network = Network::<Server<Curt>>::new(b"").unwrap();
    let client = network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:81".parse().unwrap());
    network.settle();
    assert!(!network.is_connected(client));
}
