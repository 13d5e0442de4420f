//! Reports of the groups that the node listens in (MLDv2, RFC 3810).
//!
//! A solicitation for an address goes to a group of its own. A switch with multicast snooping forwards it only to ports
//! by which a report for the group has come, so that without one the node could not be found. Queries are not answered:
//! the node reports as often as routers ask by default.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::{EthernetAddress, Icmpv6Packet, IpProtocol, Ipv6Packet, Ipv6Repr};

use super::link_header;
use super::messages::{ETHERTYPE_IPV6, group_station, solicited_node};
use super::network::Network;

const IPV6_HEADER: usize = 40;
/// A hop-by-hop header with the router alert of RFC 2711 for these messages, and padding.
const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// A report with one record: no sources are told apart.
const REPORT_BYTES: usize = 28;
const REPORT: u8 = 143;
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Bytes of a report behind its link header.
pub(crate) const PACKET_BYTES: usize = IPV6_HEADER + ROUTER_ALERT.len() + REPORT_BYTES;

/// Since when the node listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listening {
    /// It has just begun.
    Begins,
    /// It has told so before.
    GoesOn,
}

/// Writes a report of the group in which neighbours ask for `address` to the start of `space`, which holds at least
/// [`super::messages::MESSAGE_BYTES_MAX`] bytes. Returns its length; `None` if there is no such group, or no link-local
/// address to report from.
pub(crate) fn write(
    network: &Network,
    station: EthernetAddress,
    space: &mut [u8],
    address: IpAddr,
    listening: Listening,
) -> Option<usize> {
    let (IpAddr::V6(address), from) = (address, network.link_local()?) else { return None };
    let at = link_header::write(space, (group_station(ALL_ROUTERS), station), network.tags(), ETHERTYPE_IPV6);
    let header = Ipv6Repr {
        src_addr: from,
        dst_addr: ALL_ROUTERS,
        next_header: IpProtocol::HopByHop,
        payload_len: PACKET_BYTES - IPV6_HEADER,
        hop_limit: 1,
    };
    let mut packet = Ipv6Packet::new_unchecked(&mut space[at..at + PACKET_BYTES]);
    header.emit(&mut packet);
    let (alert, report) = packet.payload_mut().split_at_mut(ROUTER_ALERT.len());
    alert.copy_from_slice(&ROUTER_ALERT);
    report.fill(0);
    report[0] = REPORT;
    // One record.
    report[7] = 1;
    // Of all sources: the state has changed to that, or is that.
    report[8] = match listening {
        Listening::Begins => 4,
        Listening::GoesOn => 2,
    };
    report[12..].copy_from_slice(&solicited_node(address).octets());
    Icmpv6Packet::new_unchecked(report).fill_checksum(&from, &ALL_ROUTERS);
    Some(at + PACKET_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Vlan;
    use crate::neighbors::messages::MESSAGE_BYTES_MAX;
    use crate::neighbors::network::NetworkSetup;
    use crate::test_frames::{self as frames, *};

    fn report(address: &str, listening: Listening) -> Option<Vec<u8>> {
        let addresses = ["10.77.0.2/24", "fd77::12:3456/64"].map(|net| net.parse().unwrap());
        let vlan = Vlan { id: 100, inner_id: 0 };
        let network = Network::new(
            &NetworkSetup { vlan, addresses: addresses.to_vec(), routes: Vec::new() },
            EthernetAddress(STATION),
        );
        let mut space = [0xee; MESSAGE_BYTES_MAX];
        let len = write(&network, EthernetAddress(STATION), &mut space, address.parse().unwrap(), listening)?;
        Some(space[..len].to_vec())
    }

    #[test]
    fn a_report_names_the_group_of_an_address_with_a_router_alert_and_from_the_link_local_address() {
        let (from, group) =
            ("fe80::ff:fe00:1".parse().unwrap(), frames::solicited_node("::12:3456".parse().unwrap()).1);
        let expected = |kind: u8| {
            let record = [&[143, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0][..], &group.octets()].concat();
            let alerted = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &icmpv6(from, ALL_ROUTERS, &record)].concat();
            let packet = ipv6(from, ALL_ROUTERS, 0, 1, &alerted);
            tagged(&ethernet([0x33, 0x33, 0, 0, 0, 0x16], STATION, IPV6, &packet), &[(0x8100, 100)])
        };
        assert_eq!(report("fd77::12:3456", Listening::Begins), Some(expected(4)));
        assert_eq!(report("fd77::12:3456", Listening::GoesOn), Some(expected(2)));
        assert_eq!(report("10.77.0.2", Listening::Begins), None);
    }
}
