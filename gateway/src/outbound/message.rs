//! What functions and the node say to each other about flows: the only place that reads and writes these frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pinion_abi::{
    FLOW_BYTES, FLOW_DESTINATION_AT, FLOW_DESTINATION_PORT_AT, FLOW_ETHERTYPE, FLOW_IP_AT, FLOW_KIND_AT,
    FLOW_NUMBER_AT, FLOW_PROTOCOL_AT, FLOW_REASON_AT, FLOW_SOURCE_AT, FLOW_SOURCE_PORT_AT, FLOW_TAG_AT, FLOW_VERSION,
    FLOW_VERSION_AT, FLOW_VLAN_AT, FlowEnd, FlowKind, FlowRefusal,
};

use super::Told;
use crate::headers::Vlan;

/// Addresses of stations that do not exist, for functions that look at addresses. Locally administered.
const TO: [u8; 6] = [0x02, b'P', b'I', b'N', 0, 1];
const FROM: [u8; 6] = [0x02, b'P', b'I', b'N', 0, 0];

/// What a function asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A flow. `to` is `None` if it is no address.
    Open { tag: u64, protocol: u8, to: Option<IpAddr>, port: u16, vlan: Vlan },
    /// The end of a flow.
    Close { number: u64 },
}

/// A flow that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) number: u64,
    pub(crate) source: IpAddr,
    pub(crate) port: u16,
}

/// Reads a request; `None` if it is none.
pub(crate) fn read(frame: &[u8]) -> Option<Request> {
    let frame = frame.first_chunk::<FLOW_BYTES>()?;
    if frame[FLOW_VERSION_AT] != FLOW_VERSION {
        return None;
    }
    match FlowKind::of(frame[FLOW_KIND_AT])? {
        FlowKind::Open => Some(Request::Open {
            tag: u64_at(frame, FLOW_TAG_AT),
            protocol: frame[FLOW_PROTOCOL_AT],
            to: address_at(frame, FLOW_DESTINATION_AT),
            port: u16::from_be_bytes([frame[FLOW_DESTINATION_PORT_AT], frame[FLOW_DESTINATION_PORT_AT + 1]]),
            vlan: Vlan { id: u16::from_le_bytes([frame[FLOW_VLAN_AT], frame[FLOW_VLAN_AT + 1]]), inner_id: 0 },
        }),
        FlowKind::Close => Some(Request::Close { number: u64_at(frame, FLOW_NUMBER_AT) }),
        FlowKind::Opened | FlowKind::Refused | FlowKind::Closed => None,
    }
}

fn u64_at(frame: &[u8; FLOW_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&frame[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn address_at(frame: &[u8; FLOW_BYTES], at: usize) -> Option<IpAddr> {
    let mut octets = [0; 16];
    octets.copy_from_slice(&frame[at..at + 16]);
    let [a, b, c, d, ..] = octets;
    match frame[FLOW_IP_AT] {
        4 => Some(Ipv4Addr::new(a, b, c, d).into()),
        6 => Some(Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

fn write_address(frame: &mut [u8], at: usize, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            frame[at..at + 16].fill(0);
            frame[at..at + 4].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => frame[at..at + 16].copy_from_slice(&address.octets()),
    }
}

fn write_header(frame: &mut [u8], kind: FlowKind, reason: u8) {
    frame[..6].copy_from_slice(&TO);
    frame[6..12].copy_from_slice(&FROM);
    frame[12..14].copy_from_slice(&FLOW_ETHERTYPE.to_be_bytes());
    frame[FLOW_VERSION_AT] = FLOW_VERSION;
    frame[FLOW_KIND_AT] = kind as u8;
    frame[FLOW_REASON_AT] = reason;
}

/// Turns a request that was read into its answer: the flow is open.
pub(crate) fn answer_opened(frame: &mut [u8], opened: Opened) {
    write_header(frame, FlowKind::Opened, 0);
    frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&opened.number.to_le_bytes());
    frame[FLOW_SOURCE_PORT_AT..FLOW_SOURCE_PORT_AT + 2].copy_from_slice(&opened.port.to_be_bytes());
    write_address(frame, FLOW_SOURCE_AT, opened.source);
}

/// Turns a request that was read into its answer: there is no flow.
pub(crate) fn answer_refused(frame: &mut [u8], refusal: FlowRefusal) {
    write_header(frame, FlowKind::Refused, refusal as u8);
    frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].fill(0);
}

/// Turns a request that was read into its answer: the flow has ended.
pub(crate) fn answer_closed(frame: &mut [u8]) {
    write_header(frame, FlowKind::Closed, FlowEnd::ByGuest as u8);
}

/// Writes that a flow has ended. Returns the length of the frame, or `None` if the space is too small.
pub(crate) fn write_closed(space: &mut [u8], told: &Told) -> Option<usize> {
    let frame = space.get_mut(..FLOW_BYTES)?;
    let Told { tag, number, end, answers, .. } = told;
    frame.fill(0);
    write_header(frame, FlowKind::Closed, *end as u8);
    frame[FLOW_TAG_AT..FLOW_TAG_AT + 8].copy_from_slice(&tag.to_le_bytes());
    frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
    frame[FLOW_PROTOCOL_AT] = answers.protocol();
    frame[FLOW_IP_AT] = if answers.is_ipv6() { 6 } else { 4 };
    frame[FLOW_SOURCE_PORT_AT..FLOW_SOURCE_PORT_AT + 2].copy_from_slice(&answers.destination_port().to_be_bytes());
    frame[FLOW_DESTINATION_PORT_AT..FLOW_DESTINATION_PORT_AT + 2].copy_from_slice(&answers.source_port().to_be_bytes());
    write_address(frame, FLOW_SOURCE_AT, answers.destination());
    write_address(frame, FLOW_DESTINATION_AT, answers.source());
    frame[FLOW_VLAN_AT..FLOW_VLAN_AT + 2].copy_from_slice(&answers.ingress().vlan.id.to_le_bytes());
    Some(FLOW_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_read_lies_where_the_contract_says() {
        let mut frame = [0; FLOW_BYTES];
        frame[12..16].copy_from_slice(&[0x88, 0xb6, 1, 1]);
        frame[16..24].copy_from_slice(&0x0102_0304_0506_0708_u64.to_le_bytes());
        (frame[32], frame[33]) = (17, 4);
        frame[38..40].copy_from_slice(&[0, 53]);
        frame[56..60].copy_from_slice(&[192, 0, 2, 53]);
        frame[72..74].copy_from_slice(&[100, 0]);
        let vlan = Vlan { id: 100, inner_id: 0 };
        let to = Some(Ipv4Addr::new(192, 0, 2, 53).into());
        let expected = Request::Open { tag: 0x0102_0304_0506_0708, protocol: 17, to, port: 53, vlan };
        assert_eq!(read(&frame), Some(expected));
        frame[15] = 2;
        frame[24..32].copy_from_slice(&7_u64.to_le_bytes());
        assert_eq!(read(&frame), Some(Request::Close { number: 7 }));
    }

    proptest! {
        #[test]
        fn whatever_a_function_sends_is_read_and_answered_without_a_panic(
            mut frame in prop::collection::vec(any::<u8>(), 0..120), kind in 0_u8..7, version in 0_u8..8,
        ) {
            if let Some(at) = frame.get_mut(FLOW_VERSION_AT..FLOW_PROTOCOL_AT + 2) {
                (at[0], at[1], at[FLOW_IP_AT - FLOW_VERSION_AT]) = (FLOW_VERSION, kind, version);
            }
            if read(&frame).is_some() {
                prop_assert!(frame.len() >= FLOW_BYTES);
                answer_refused(&mut frame, FlowRefusal::Quota);
                answer_closed(&mut frame);
                answer_opened(&mut frame, Opened { number: 1, source: Ipv6Addr::LOCALHOST.into(), port: 9 });
                prop_assert_eq!(read(&frame), None, "an answer is no request");
            }
        }
    }
}
