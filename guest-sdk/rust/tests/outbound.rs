//! Flows that a function opens itself, on a fake node.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use pinion_sdk::headers::{Headers, UDP};
use pinion_sdk::outbound::{End, Event, Flow, Protocol, Refusal, Request};
use pinion_sdk::testing::{self, Harness, Outcome, Verdict};
use pinion_sdk::{Batch, Function, InitError, checksum};

/// Asks for a flow by its first packet, and sends a datagram for each further one. Logs what the node says and what comes.
struct Asker {
    request: Request,
    flow: Option<Flow>,
}

impl Function for Asker {
    const OWN_SLOTS: u16 = 4;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = str::from_utf8(config).unwrap();
        let (vlan, to) = text.split_once(' ').unwrap();
        let (vlan, to) = (vlan.parse().unwrap(), to.parse().unwrap());
        Ok(Self { request: Request { tag: 77, protocol: Protocol::Udp, to, vlan }, flow: None })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let slots = batch.slots();
        for packet in batch {
            let way = packet.way();
            match (Event::of(&packet), &self.flow) {
                (Some(event), _) => {
                    pinion_sdk::info!("{event:?}");
                    self.flow = if let Event::Opened { flow, .. } = event { Some(flow) } else { None };
                }
                (None, None) => self.request.packet(slots, way).unwrap().reply(),
                (None, Some(flow)) => match flow.answer(packet.data()) {
                    Some(answer) if answer == b"end" => flow.close(78, slots, way).unwrap().reply(),
                    Some(answer) => pinion_sdk::info!("answer of {} bytes", answer.len()),
                    None => flow.datagram(b"odd", slots, way).unwrap().reply(),
                },
            }
        }
    }
}

fn made(verdicts: Vec<Verdict>) -> Vec<u8> {
    let mut made = verdicts.into_iter().filter(|verdict| verdict.frame.is_none());
    let Verdict { outcome, bytes, .. } = made.next().expect("the function has made a packet");
    assert_eq!(outcome, Outcome::Replied);
    bytes
}

fn logged() -> Vec<String> {
    testing::take_log().into_iter().map(|(_, line)| line).collect()
}

/// Opens a flow; returns the harness, the request and the first datagram.
fn open(config: &str, source: &str) -> (Harness<Asker>, Vec<u8>, Vec<u8>) {
    let mut harness = Harness::<Asker>::new(config.as_bytes()).unwrap();
    let request = made(harness.deliver(&[&[0; 60]]));
    harness.deliver(&[&testing::opened(&request, 9, source.parse().unwrap())]);
    let sent = made(harness.deliver(&[&[0; 60]]));
    (harness, request, sent)
}

#[test]
fn a_datagram_of_a_flow_is_whole_and_its_answer_is_read() {
    for (config, source, header) in
        [("0 192.0.2.53:53", "10.0.0.1:50000", 34), ("0 [2001:db8::53]:53", "[fd00::1]:50000", 54)]
    {
        let (mut harness, _, sent) = open(config, source);
        assert_eq!(sent[..12], [0; 12], "the node writes its Ethernet addresses");
        let headers = Headers::of(&sent).unwrap();
        let flow = headers.flow().unwrap();
        let source: SocketAddr = source.parse().unwrap();
        assert_eq!((flow.addresses.source(), flow.ports.source, flow.ports.destination), (source.ip(), 50_000, 53));
        assert_eq!(&sent[header + 8..], b"odd");
        assert!(are_checksums_right(&sent[14..]));

        // The same, turned around and padded.
        let mut answer = sent.clone();
        let addresses = if header == 34 { 26..34 } else { 22..54 };
        let half = addresses.len() / 2;
        answer[addresses].rotate_left(half);
        answer[header..header + 4].rotate_left(2);
        answer.extend([0; 20]);
        logged();
        harness.deliver(&[&answer]);
        assert_eq!(logged(), ["answer of 3 bytes"]);
        answer[header] ^= 1;
        assert!(harness.deliver(&[&answer]).iter().any(|verdict| verdict.frame.is_none()), "another's is none");
    }
}

/// Checks the checksums of a packet: over data that include a right one, each sum is zero.
fn are_checksums_right(packet: &[u8]) -> bool {
    let (addresses, datagram) = if packet[0] >> 4 == 4 { (12..20, 20) } else { (8..40, 40) };
    let is_header_right = packet[0] >> 4 == 6 || checksum::of(&packet[..20]) == 0;
    let len = (packet.len() - datagram) as u16;
    let pseudo = [&packet[addresses], &[0, UDP], &len.to_be_bytes(), &packet[datagram..]].concat();
    is_header_right && checksum::of(&pseudo) == 0
}

#[test]
fn a_flow_in_a_vlan_has_tagged_datagrams() {
    let (_, _, sent) = open("100 192.0.2.53:53", "10.0.0.1:50000");
    assert_eq!(sent[12..18], [0x81, 0, 0, 100, 8, 0]);
    assert!(are_checksums_right(&sent[18..]));
}

#[test]
fn what_the_node_says_is_told_with_the_functions_tag() {
    let (mut harness, request, _) = open("0 192.0.2.53:53", "10.0.0.1:50000");
    let opened = logged().join("");
    assert!(opened.starts_with("Opened { tag: 77, flow: Flow { number: 9, protocol: Udp,"), "{opened}");
    harness.deliver(&[&testing::closed(&request, 9, End::Idle)]);
    harness.deliver(&[&testing::refused(&request, Refusal::Quota)]);
    assert_eq!(logged(), ["Closed { tag: 77, number: 9, end: Idle }", "Refused { tag: 77, refusal: Quota }"]);
}
