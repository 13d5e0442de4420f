//! The node's side of outbound flows, for tests: what it says, and [`FlowNode`], which says it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pinion_abi::{
    FLOW_BYTES, FLOW_ETHERTYPE, FLOW_KIND_AT, FLOW_NUMBER_AT, FLOW_REASON_AT, FLOW_SOURCE_AT, FLOW_SOURCE_PORT_AT,
    FlowKind,
};

use crate::headers::Headers;
use crate::outbound::{End, Flow, Protocol, Refusal, read_request, write_end};

/// The addresses of a fake node, from which flows leave.
const SOURCE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
/// See [`SOURCE_V4`].
const SOURCE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1));
const FIRST_PORT: u16 = 50_000;

/// Decides on requests.
type Judge = dyn FnMut(Protocol, SocketAddr) -> Option<Refusal>;

/// A fake node that opens and closes flows from 198.51.100.1 and 2001:db8:9::1. It grants everything, unless it is told otherwise.
pub struct FlowNode {
    judge: Box<Judge>,
    /// With the tags of their requests.
    open: Vec<(u64, Flow)>,
    requests: u64,
    lost: u64,
}

impl Default for FlowNode {
    fn default() -> Self {
        Self { judge: Box::new(|_, _| None), open: Vec::new(), requests: 0, lost: 0 }
    }
}

impl FlowNode {
    /// From now on, `judge` decides which flows are refused.
    pub fn refuse(&mut self, judge: impl FnMut(Protocol, SocketAddr) -> Option<Refusal> + 'static) {
        self.judge = Box::new(judge);
    }

    /// Loses as many of the next requests: they get no answer.
    pub fn lose_requests(&mut self, count: u64) {
        self.lost = self.requests + count;
    }

    /// Returns the open flows, in the order in which they were opened.
    #[must_use]
    pub fn open(&self) -> Vec<Flow> {
        self.open.iter().map(|(_, flow)| *flow).collect()
    }

    /// Returns how many requests for flows there were.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Ends an open flow. Returns the news of it, for the function.
    ///
    /// # Panics
    ///
    /// If no flow of this number is open.
    #[must_use]
    pub fn end(&mut self, number: u64, end: End) -> Vec<u8> {
        let at = self.open.iter().position(|(_, flow)| flow.number == number).expect("a flow of this number is open");
        let (tag, _) = self.open.remove(at);
        said(FlowKind::Closed, tag, number, end as u8)
    }

    /// Returns whether this frame of the function asks for something about flows, and the node's answer if there is one.
    ///
    /// # Panics
    ///
    /// If it is a message of the node's.
    pub fn answer(&mut self, frame: &[u8]) -> (bool, Option<Vec<u8>>) {
        if frame.len() != FLOW_BYTES || frame[12..14] != FLOW_ETHERTYPE.to_be_bytes() {
            return (false, None);
        }
        let number_at = |at: usize| frame[at..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        let (tag, number) = (number_at(pinion_abi::FLOW_TAG_AT), number_at(FLOW_NUMBER_AT));
        match FlowKind::of(frame[FLOW_KIND_AT]) {
            Some(FlowKind::Open) => (true, self.answer_open(frame)),
            Some(FlowKind::Close) => {
                self.open.retain(|(_, flow)| flow.number != number);
                (true, Some(said(FlowKind::Closed, tag, number, End::ByGuest as u8)))
            }
            _ => panic!("a function asks for flows, or for their ends"),
        }
    }

    fn answer_open(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (tag, protocol, to, vlan) = read_request(frame).expect("a request names protocol and address");
        self.requests += 1;
        if self.requests <= self.lost {
            return None;
        }
        if let Some(refusal) = (self.judge)(protocol, to) {
            return Some(refused(frame, refusal));
        }
        let address = if to.is_ipv4() { SOURCE_V4 } else { SOURCE_V6 };
        let source = SocketAddr::new(address, FIRST_PORT + (self.requests % 10_000) as u16);
        let flow = Flow { number: self.requests, protocol, source, to, vlan };
        self.open.push((tag, flow));
        Some(opened(frame, flow.number, source))
    }

    /// Returns whether a frame of the function leaves the node: it has the station's address, or belongs to an open flow.
    #[must_use]
    pub fn lets_out(&self, frame: &[u8]) -> bool {
        frame[..12] != [0; 12] || self.open.iter().any(|(_, flow)| is_of(flow, frame, true))
    }

    /// Returns whether a frame to the node reaches the function: only those to the sources of flows need an open one.
    #[must_use]
    pub fn lets_in(&self, frame: &[u8]) -> bool {
        let to = Headers::of(frame).ok().map(|headers| headers.addresses.destination());
        let is_for_flow = to == Some(SOURCE_V4) || to == Some(SOURCE_V6);
        // The node knows what an ICMP error is about; here any passes.
        let has_ports = Headers::of(frame).is_ok_and(|headers| headers.ports.is_some());
        !is_for_flow || !has_ports || self.open.iter().any(|(_, flow)| is_of(flow, frame, false))
    }
}

/// Returns whether a frame belongs to a flow, in one direction.
fn is_of(flow: &Flow, frame: &[u8], is_out: bool) -> bool {
    let Some(key) = Headers::of(frame).ok().and_then(|headers| headers.flow()) else { return false };
    let source = SocketAddr::new(key.addresses.source(), key.ports.source);
    let destination = SocketAddr::new(key.addresses.destination(), key.ports.destination);
    let ends = if is_out { (flow.source, flow.to) } else { (flow.to, flow.source) };
    key.protocol == flow.protocol as u8 && (source, destination) == ends
}

fn said(kind: FlowKind, tag: u64, number: u64, reason: u8) -> Vec<u8> {
    let mut frame = crate::outbound::message(kind, tag);
    frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
    frame[FLOW_REASON_AT] = reason;
    frame.into()
}

/// Makes a node's answer to a function's [request](crate::outbound::Request): the flow is open, with this number and source.
///
/// # Panics
///
/// If it is no request.
#[must_use]
pub fn opened(request: &[u8], number: u64, source: SocketAddr) -> Vec<u8> {
    let mut frame = answer(request, FlowKind::Opened, 0);
    frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
    write_end(&mut frame, source, FLOW_SOURCE_AT, FLOW_SOURCE_PORT_AT);
    frame.into()
}

/// Makes a node's answer to a function's [request](crate::outbound::Request): there is no flow.
///
/// # Panics
///
/// If it is no request.
#[must_use]
pub fn refused(request: &[u8], refusal: Refusal) -> Vec<u8> {
    answer(request, FlowKind::Refused, refusal as u8).into()
}

/// Makes a node's news that the flow of this [request](crate::outbound::Request) has ended.
///
/// # Panics
///
/// If it is no request.
#[must_use]
pub fn closed(request: &[u8], number: u64, end: End) -> Vec<u8> {
    let mut frame = answer(request, FlowKind::Closed, end as u8);
    frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
    frame.into()
}

fn answer(request: &[u8], kind: FlowKind, reason: u8) -> [u8; FLOW_BYTES] {
    let mut frame: [u8; FLOW_BYTES] = request.try_into().expect("a request has the length of one");
    assert_eq!(frame[12..14], FLOW_ETHERTYPE.to_be_bytes(), "this is no request");
    assert!(FlowKind::of(frame[FLOW_KIND_AT]) == Some(FlowKind::Open), "this asks for no flow");
    (frame[FLOW_KIND_AT], frame[FLOW_REASON_AT]) = (kind as u8, reason);
    frame
}
