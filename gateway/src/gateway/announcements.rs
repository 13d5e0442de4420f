//! What the node tells unasked of a port's addresses: it announces them, defends them against other stations, and reports
//! the groups in which others ask for them.
//!
//! A few messages in each sweep. Allocates nothing.

use std::net::IpAddr;

use smoltcp::wire::EthernetAddress;

use super::PortState;
use super::buffer_return::BufferReturn;
use crate::neighbors::listener_report::{self, Listening};
use crate::neighbors::messages;
use crate::neighbors::network::Network;
use crate::neighbors::table::NetworkIndex;

/// Announcements, and reports, of a port in one sweep.
const AT_ONCE: usize = 8;
const SECOND_NS: u64 = 1_000_000_000;
/// The least time between two defences of a port's addresses (RFC 5227, section 2.4).
pub(super) const DEFEND_INTERVAL_NS: u64 = 10 * SECOND_NS;
/// When groups are reported again after the first report (RFC 3810, section 9.11), and after each further one: as often as
/// a router asks, so that a switch that forgets what was not reported for longer does not forget them (section 9.2).
pub(super) const REPORT_AGAIN_NS: u64 = SECOND_NS;
pub(super) const REPORT_INTERVAL_NS: u64 = 125 * SECOND_NS;

/// Another station that claims an address of the node's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub(super) network: NetworkIndex,
    pub(super) address: IpAddr,
    pub(super) station: EthernetAddress,
}

/// How far a port's announcements are.
#[derive(Debug)]
pub(super) struct Announcements {
    /// The next address to announce, and the next whose group is reported, by their numbers among the port's. `None` if
    /// all are.
    announced: Option<usize>,
    reported: Option<usize>,
    listening: Listening,
    /// When all groups are reported again.
    report_ns: u64,
    /// The conflict that was heard last and is not defended against yet.
    conflict: Option<Conflict>,
    defended_ns: Option<u64>,
}

impl Announcements {
    pub(super) fn new() -> Self {
        Self {
            announced: Some(0),
            reported: Some(0),
            listening: Listening::Begins,
            report_ns: 0,
            conflict: None,
            defended_ns: None,
        }
    }

    /// Begins anew: others may be on the link, or the port has another hardware address.
    pub(super) fn restart(&mut self) {
        (self.announced, self.reported, self.listening) = (Some(0), Some(0), Listening::Begins);
    }

    pub(super) fn note_conflict(&mut self, conflict: Conflict) {
        self.conflict = Some(conflict);
    }

    /// Returns the conflict to defend against now, if there is one.
    fn take_due_conflict(&mut self, now_ns: u64) -> Option<Conflict> {
        let is_due = |at_ns| now_ns.saturating_sub(at_ns) >= DEFEND_INTERVAL_NS;
        let conflict = self.conflict.take_if(|_| self.defended_ns.is_none_or(is_due))?;
        self.defended_ns = Some(now_ns);
        Some(conflict)
    }

    /// Begins to report all groups again, if that is due.
    fn keep_reporting(&mut self, now_ns: u64) {
        if self.reported.is_none() && now_ns >= self.report_ns {
            (self.reported, self.listening) = (Some(0), Listening::GoesOn);
        }
        if self.reported == Some(0) {
            let is_first = self.listening == Listening::Begins;
            self.report_ns = now_ns + if is_first { REPORT_AGAIN_NS } else { REPORT_INTERVAL_NS };
        }
    }
}

/// Sends what is due of a port.
pub(super) fn announce(state: &mut PortState, bin: &mut BufferReturn, now_ns: u64) {
    state.announcements.keep_reporting(now_ns);
    // Taken out, as the port sends what is written with them.
    let (networks, station) = (std::mem::take(&mut state.networks), state.station);
    let of_all = || networks.iter().flat_map(|network| network.announced().map(move |address| (network, address)));
    for _ in 0..AT_ONCE {
        let Some((network, address)) = next(&mut state.announcements.announced, of_all()) else { break };
        state.send_own(bin, |space| Some(messages::write_announcement(network, station, space, address)));
    }
    for _ in 0..AT_ONCE {
        let of_ipv6 = of_all().filter(|(_, address)| address.is_ipv6());
        let Some((network, address)) = next(&mut state.announcements.reported, of_ipv6) else { break };
        let listening = state.announcements.listening;
        state.send_own(bin, |space| listener_report::write(network, station, space, address, listening));
    }
    if let Some(conflict) = state.announcements.take_due_conflict(now_ns) {
        defend(state, bin, &networks, conflict);
    }
    state.networks = networks;
}

/// Takes the next of so many, if not all have been taken.
fn next<T>(at: &mut Option<usize>, mut all: impl Iterator<Item = T>) -> Option<T> {
    let next = all.nth((*at)?);
    *at = at.filter(|_| next.is_some()).map(|at| at + 1);
    next
}

/// Announces an address that another station claims, so that neighbours hold to the node. Both go on if the other does
/// too: an operator has to find it.
#[cold]
fn defend(state: &mut PortState, bin: &mut BufferReturn, networks: &[Network], conflict: Conflict) {
    let Conflict { network, address, station: other } = conflict;
    let network = network.0.checked_sub(state.first_network).and_then(|at| networks.get(usize::from(at)));
    // The link-local address may have changed since.
    let Some(network) = network.filter(|network| network.has(address)) else { return };
    tracing::warn!(port = state.port.name(), %address, station = %other, "another station claims an address of the port");
    let station = state.station;
    state.send_own(bin, |space| Some(messages::write_announcement(network, station, space, address)));
}
