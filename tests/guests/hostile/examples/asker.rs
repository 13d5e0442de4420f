//! Asks others for its client: each datagram of the client is `ADDRESS:PORT QUESTION`, of which it sends the question there by a flow of its
//! own. It passes on the answers, and tells what the node says about the flow. `many ADDRESS:PORT` opens flows until one is refused.

use std::net::SocketAddr;

use pinion_sdk::headers::Headers;
use pinion_sdk::outbound::{Event, Flow, Protocol, Request};
use pinion_sdk::{Batch, Function, InitError, Slots, Way};

#[derive(Default)]
struct Asker {
    /// What leads back to the client.
    client: Option<Flow>,
    flow: Option<Flow>,
    question: Vec<u8>,
    /// How many flows were opened, while many are asked for.
    many: Option<u32>,
    request: Option<Request>,
}

impl Function for Asker {
    const OWN_SLOTS: u16 = 8;

    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self::default())
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let slots = batch.slots();
        for packet in batch {
            let way = packet.way();
            if let Some(event) = Event::of(&packet) {
                self.take_news(event, slots, way);
            } else if let Ok(headers) = Headers::of(packet.data()) {
                if headers.icmp.is_some_and(|icmp| icmp.is_error) {
                    self.tell(b"error", slots, way);
                } else if let Some(answer) = self.flow.and_then(|flow| flow.answer(packet.data())) {
                    self.tell(answer, slots, way);
                } else {
                    self.ask(&headers, packet.data(), slots, way);
                }
            }
        }
    }
}

impl Asker {
    fn tell(&self, text: &[u8], slots: Slots<'_>, way: Way) {
        if let Some(packet) = self.client.and_then(|client| client.datagram(text, slots, way)) {
            packet.reply();
        }
    }

    fn take_news(&mut self, event: Event, slots: Slots<'_>, way: Way) {
        match (event, self.many) {
            (Event::Opened { .. }, Some(count)) => {
                self.many = Some(count + 1);
                self.open(slots, way);
            }
            (Event::Opened { flow, .. }, None) => {
                self.flow = Some(flow);
                if let Some(packet) = flow.datagram(&self.question, slots, way) {
                    packet.reply();
                }
            }
            (Event::Refused { refusal, .. }, Some(count)) => {
                self.tell(format!("refused after {count}: {refusal:?}").as_bytes(), slots, way);
            }
            (Event::Refused { refusal, .. }, None) => self.tell(format!("refused: {refusal:?}").as_bytes(), slots, way),
            (Event::Closed { end, .. }, _) => self.tell(format!("closed: {end:?}").as_bytes(), slots, way),
        }
    }

    fn open(&self, slots: Slots<'_>, way: Way) {
        if let Some(packet) = self.request.and_then(|request| request.packet(slots, way)) {
            packet.reply();
        }
    }

    /// Takes what the client sends.
    fn ask(&mut self, headers: &Headers, frame: &[u8], slots: Slots<'_>, way: Way) {
        let (Some(ports), Some(payload)) = (headers.ports, frame.get(headers.at.payload..headers.at.end)) else {
            return;
        };
        let node = SocketAddr::new(headers.addresses.destination(), ports.destination);
        let to = SocketAddr::new(headers.addresses.source(), ports.source);
        self.client = Some(Flow { number: 0, protocol: Protocol::Udp, source: node, to, vlan: 0 });
        if payload == b"close" {
            if let Some(packet) = self.flow.and_then(|flow| flow.close(1, slots, way)) {
                packet.reply();
            }
            return;
        }
        let text = String::from_utf8_lossy(payload);
        let Some((first, second)) = text.split_once(' ') else { return };
        let is_many = first == "many";
        let Ok(to) = (if is_many { second } else { first }).parse() else { return };
        self.many = is_many.then_some(0);
        self.question = second.as_bytes().to_vec();
        self.request = Some(Request { tag: 1, protocol: Protocol::Udp, to, vlan: 0 });
        self.open(slots, way);
    }
}

pinion_sdk::export!(Asker);
