//! What a node says about outbound flows, for tests.

use std::net::SocketAddr;

use pinion_abi::{
    FLOW_BYTES, FLOW_ETHERTYPE, FLOW_KIND_AT, FLOW_NUMBER_AT, FLOW_REASON_AT, FLOW_SOURCE_AT, FLOW_SOURCE_PORT_AT,
    FlowKind,
};

use crate::outbound::{End, Refusal, write_end};

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
