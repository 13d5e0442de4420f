//! Flows that a function opens itself, to addresses that its chain is granted (`outbound` in the manifest).
//!
//! A function asks for a flow by a [`Request`], which it sends the way that the flow's packets will go: along the chain, or as a
//! [reply](Packet::reply) out of the port of a [`Way`]. The node chooses source address and port, and answers with an [`Event`] among the
//! packets that come in. Then packets of the [`Flow`] may leave, and what answers them comes in like other packets. The node also passes on
//! ICMP errors about them. It tells when the flow has ended; with the instance, all of its flows end.
//!
//! ```
//! use pinion_sdk::outbound::{Event, Flow, Protocol, Request};
//! use pinion_sdk::testing::{self, Harness, Outcome};
//! use pinion_sdk::{Batch, Function, InitError};
//!
//! /// Asks a time server what is asked of it, and logs the answers.
//! struct Relay {
//!     flow: Option<Flow>,
//! }
//!
//! impl Function for Relay {
//!     const OWN_SLOTS: u16 = 4;
//!
//!     fn init(_config: &[u8]) -> Result<Self, InitError> {
//!         Ok(Self { flow: None })
//!     }
//!
//!     fn handle(&mut self, batch: Batch<'_>) {
//!         let slots = batch.slots();
//!         for packet in batch {
//!             if let Some(event) = Event::of(&packet) {
//!                 match event {
//!                     Event::Opened { flow, .. } => self.flow = Some(flow),
//!                     Event::Refused { refusal, .. } => pinion_sdk::warn!("no flow: {refusal:?}"),
//!                     Event::Closed { .. } => self.flow = None,
//!                 }
//!             } else if let Some(flow) = &self.flow {
//!                 match flow.answer(packet.data()) {
//!                     Some(answer) => pinion_sdk::info!("{} bytes", answer.len()),
//!                     None => flow.datagram(b"what time is it?", slots, packet.way()).into_iter().for_each(|it| it.reply()),
//!                 }
//!             } else {
//!                 let request = Request { tag: 1, protocol: Protocol::Udp, to: "192.0.2.5:123".parse().unwrap(), vlan: 0 };
//!                 request.packet(slots, packet.way()).into_iter().for_each(|it| it.reply());
//!             }
//!         }
//!     }
//! }
//!
//! let mut harness = Harness::<Relay>::new(b"").unwrap();
//! let asked = harness.deliver(&[&[0; 60]]).into_iter().find(|verdict| verdict.outcome == Outcome::Replied).unwrap();
//! harness.deliver(&[&testing::opened(&asked.bytes, 1, "10.0.0.1:50000".parse().unwrap())]);
//! let sent = harness.deliver(&[&[0; 60]]).into_iter().find(|verdict| verdict.outcome == Outcome::Replied).unwrap();
//! assert_eq!(sent.bytes[14 + 12..14 + 24], [10, 0, 0, 1, 192, 0, 2, 5, 50000_u16.to_be_bytes()[0], 50000_u16.to_be_bytes()[1], 0, 123]);
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pinion_abi::{
    FLOW_BYTES, FLOW_DESTINATION_AT, FLOW_DESTINATION_PORT_AT, FLOW_ETHERTYPE, FLOW_IP_AT, FLOW_KIND_AT,
    FLOW_NUMBER_AT, FLOW_PROTOCOL_AT, FLOW_REASON_AT, FLOW_SOURCE_AT, FLOW_SOURCE_PORT_AT, FLOW_TAG_AT, FLOW_VERSION,
    FLOW_VERSION_AT, FLOW_VLAN_AT, FlowKind,
};
pub use pinion_abi::{FlowEnd as End, FlowRefusal as Refusal};

use super::checksum;
use super::headers::Headers;
use super::packet::Packet;
use super::slots::Slots;
use super::udp;
use super::way::Way;

const ETHERNET: usize = 14;
const TAG: usize = 4;

/// The protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

/// A flow that a function asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The function's own name for it, which all events of the flow have.
    pub tag: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// Where it leads.
    pub to: SocketAddr,
    /// The VLAN in which it leaves; 0 for the untagged network.
    pub vlan: u16,
}

/// An open flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The node's number of it.
    pub number: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// The address and port that the node has chosen: its packets must have these as their source.
    pub source: SocketAddr,
    /// Where it leads.
    pub to: SocketAddr,
    /// The VLAN in which it leaves; 0 for the untagged network.
    pub vlan: u16,
}

/// What the node says about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is open.
    Opened {
        /// The request's tag.
        tag: u64,
        /// The flow.
        flow: Flow,
    },
    /// It is not opened.
    Refused {
        /// The request's tag.
        tag: u64,
        /// Why.
        refusal: Refusal,
    },
    /// It has ended.
    Closed {
        /// The request's tag.
        tag: u64,
        /// The node's number of it.
        number: u64,
        /// Why.
        end: End,
    },
}

impl Request {
    /// Makes the packet by which the function asks. It is to be sent as the flow's packets will be. `None` if none of the function's
    /// [own](crate::Function::OWN_SLOTS) slots is free.
    #[must_use]
    pub fn packet<'a>(&self, slots: Slots<'a>, way: Way) -> Option<Packet<'a>> {
        let mut frame = message(FlowKind::Open, self.tag);
        frame[FLOW_PROTOCOL_AT] = self.protocol as u8;
        frame[FLOW_VLAN_AT..FLOW_VLAN_AT + 2].copy_from_slice(&self.vlan.to_le_bytes());
        write_end(&mut frame, self.to, FLOW_DESTINATION_AT, FLOW_DESTINATION_PORT_AT);
        slots.make(&frame, way)
    }
}

impl Flow {
    /// Makes a UDP datagram of the flow. `None` if none of the function's [own](crate::Function::OWN_SLOTS) slots is free, if the payload
    /// does not fit into a packet, or if it is a flow of TCP. The node writes the Ethernet addresses.
    #[must_use]
    pub fn datagram<'a>(&self, payload: &[u8], slots: Slots<'a>, way: Way) -> Option<Packet<'a>> {
        if self.protocol != Protocol::Udp {
            return None;
        }
        let tags = if self.vlan == 0 { 0 } else { TAG };
        let headers = udp::headers_bytes(self.to);
        let mut packet = slots.make(&[], way)?;
        packet.set_len(ETHERNET + tags + headers + payload.len()).ok()?;
        let (link, ip) = packet.data_mut().split_at_mut(ETHERNET + tags);
        link.fill(0);
        let ethertype: u16 = if self.to.is_ipv4() { 0x0800 } else { 0x86dd };
        if tags > 0 {
            link[12..14].copy_from_slice(&[0x81, 0]);
            link[14..16].copy_from_slice(&self.vlan.to_be_bytes());
        }
        link[12 + tags..].copy_from_slice(&ethertype.to_be_bytes());
        ip[headers..].copy_from_slice(payload);
        udp::write_headers(ip, self.source, self.to)?;
        let (header, datagram) = ip.split_at_mut(headers - udp::UDP_HEADER);
        if self.to.is_ipv4() {
            let sum = checksum::of(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let sum = match checksum_of(self.source.ip(), self.to.ip(), datagram)? {
            0 => 0xffff,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        Some(packet)
    }

    /// Returns the payload of a frame that answers the flow: of a UDP datagram or TCP segment from its far end to its source.
    #[must_use]
    pub fn answer<'p>(&self, frame: &'p [u8]) -> Option<&'p [u8]> {
        let headers = Headers::of(frame).ok()?;
        let flow = headers.flow()?;
        let is_it = flow.protocol == self.protocol as u8
            && flow.addresses.source() == self.to.ip()
            && flow.addresses.destination() == self.source.ip()
            && (flow.ports.source, flow.ports.destination) == (self.to.port(), self.source.port());
        if !is_it {
            return None;
        }
        frame.get(headers.at.payload..headers.at.end)
    }

    /// Makes the packet by which the function asks for the end of the flow. It is to be sent as the flow's packets are. `None` if none of
    /// the function's own slots is free.
    #[must_use]
    pub fn close<'a>(&self, tag: u64, slots: Slots<'a>, way: Way) -> Option<Packet<'a>> {
        close_packet(self.number, tag, slots, way)
    }
}

/// Makes the packet by which the function asks for the end of the flow with this number: see [`Flow::close`].
pub(crate) fn close_packet(number: u64, tag: u64, slots: Slots<'_>, way: Way) -> Option<Packet<'_>> {
    let mut frame = message(FlowKind::Close, tag);
    frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
    slots.make(&frame, way)
}

impl Event {
    /// Returns the tag of the request that it is about.
    #[must_use]
    pub fn tag(&self) -> u64 {
        match *self {
            Self::Opened { tag, .. } | Self::Refused { tag, .. } | Self::Closed { tag, .. } => tag,
        }
    }

    /// Returns what the node says by this packet; `None` if that is another's packet.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let frame = packet.data().first_chunk::<FLOW_BYTES>()?;
        if frame[12..14] != FLOW_ETHERTYPE.to_be_bytes() || frame[FLOW_VERSION_AT] != FLOW_VERSION {
            return None;
        }
        let number_at = |at: usize| frame[at..].first_chunk().copied().map(u64::from_le_bytes);
        let (tag, number) = (number_at(FLOW_TAG_AT)?, number_at(FLOW_NUMBER_AT)?);
        match FlowKind::of(frame[FLOW_KIND_AT])? {
            FlowKind::Opened => Some(Self::Opened {
                tag,
                flow: Flow {
                    number,
                    protocol: if frame[FLOW_PROTOCOL_AT] == Protocol::Tcp as u8 {
                        Protocol::Tcp
                    } else {
                        Protocol::Udp
                    },
                    source: read_end(frame, FLOW_SOURCE_AT, FLOW_SOURCE_PORT_AT),
                    to: read_end(frame, FLOW_DESTINATION_AT, FLOW_DESTINATION_PORT_AT),
                    vlan: u16::from_le_bytes([frame[FLOW_VLAN_AT], frame[FLOW_VLAN_AT + 1]]),
                },
            }),
            FlowKind::Refused => Some(Self::Refused { tag, refusal: Refusal::of(frame[FLOW_REASON_AT]) }),
            FlowKind::Closed => Some(Self::Closed { tag, number, end: End::of(frame[FLOW_REASON_AT]) }),
            FlowKind::Open | FlowKind::Close => None,
        }
    }
}

pub(crate) fn message(kind: FlowKind, tag: u64) -> [u8; FLOW_BYTES] {
    let mut frame = [0; FLOW_BYTES];
    frame[12..14].copy_from_slice(&FLOW_ETHERTYPE.to_be_bytes());
    (frame[FLOW_VERSION_AT], frame[FLOW_KIND_AT]) = (FLOW_VERSION, kind as u8);
    frame[FLOW_TAG_AT..FLOW_TAG_AT + 8].copy_from_slice(&tag.to_le_bytes());
    frame
}

/// Writes one end of a flow, and the version of IP.
pub(crate) fn write_end(frame: &mut [u8; FLOW_BYTES], end: SocketAddr, at: usize, port_at: usize) {
    frame[port_at..port_at + 2].copy_from_slice(&end.port().to_be_bytes());
    match end.ip() {
        IpAddr::V4(address) => {
            frame[FLOW_IP_AT] = 4;
            frame[at..at + 4].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            frame[FLOW_IP_AT] = 6;
            frame[at..at + 16].copy_from_slice(&address.octets());
        }
    }
}

fn read_end(frame: &[u8; FLOW_BYTES], at: usize, port_at: usize) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&frame[at..at + 16]);
    let address = match (frame[FLOW_IP_AT], octets) {
        (4, [a, b, c, d, ..]) => IpAddr::from(Ipv4Addr::new(a, b, c, d)),
        (_, octets) => Ipv6Addr::from(octets).into(),
    };
    SocketAddr::new(address, u16::from_be_bytes([frame[port_at], frame[port_at + 1]]))
}

/// Returns tag, protocol, destination and VLAN of a request for a flow. `None` if it names no protocol of a flow.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn read_request(frame: &[u8]) -> Option<(u64, Protocol, SocketAddr, u16)> {
    let frame = frame.first_chunk::<FLOW_BYTES>()?;
    let protocol = [Protocol::Tcp, Protocol::Udp].into_iter().find(|it| *it as u8 == frame[FLOW_PROTOCOL_AT])?;
    let tag = u64::from_le_bytes(*frame[FLOW_TAG_AT..].first_chunk()?);
    let vlan = u16::from_le_bytes([frame[FLOW_VLAN_AT], frame[FLOW_VLAN_AT + 1]]);
    Some((tag, protocol, read_end(frame, FLOW_DESTINATION_AT, FLOW_DESTINATION_PORT_AT), vlan))
}

/// Returns the checksum of a UDP datagram, with its pseudo header.
fn checksum_of(source: IpAddr, to: IpAddr, datagram: &[u8]) -> Option<u16> {
    let mut pseudo = [0; 40];
    let len = u32::try_from(datagram.len()).ok()?;
    match (source, to) {
        (IpAddr::V4(source), IpAddr::V4(to)) => {
            pseudo[..4].copy_from_slice(&source.octets());
            pseudo[4..8].copy_from_slice(&to.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(to)) => {
            pseudo[..16].copy_from_slice(&source.octets());
            pseudo[16..32].copy_from_slice(&to.octets());
        }
        _ => return None,
    }
    pseudo[32..36].copy_from_slice(&len.to_be_bytes());
    pseudo[39] = Protocol::Udp as u8;
    let of_both = u32::from(!checksum::of(&pseudo)) + u32::from(!checksum::of(datagram));
    Some(!((of_both & 0xffff) + (of_both >> 16)) as u16)
}
