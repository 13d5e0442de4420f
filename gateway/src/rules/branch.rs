//! The conditions of a branch within a chain: the matches of rules, met by the frames that the MMA moves.
//!
//! The launcher's side makes a [`BranchConditions`]; the MMA asks it for each frame that comes to the branch. Parser,
//! patterns and search are those of the rules, so a match means the same in both places. Four things differ, as a branch
//! sees frames one by one, wherever they come from:
//! * **A fragment** is matched by its addresses and its protocol alone, also the first one: no case with ports or an ICMP
//!   type applies to it. So all fragments of a datagram take the same way.
//! * **A broadcast address** is 255.255.255.255 only. Which other ones there are depends on the networks of a port.
//! * **A frame that the gateway would drop** as malformed, and all that is not IP, meets no case.
//! * **A packet whose headers do not end within the first [`HEAD_BYTES`]** meets no case, as an output shows a branch no
//!   more; at an entrance likewise. Of an error that holds for the headers of the packet that it quotes as well.
//!
//! No byte is trusted: a guest may have made the frame. Allocates nothing; the work is bounded as that of a lookup is.

use pinion_mma::id::PortIndex;
use pinion_mma::wiring::branch::{Conditions, HEAD_BYTES};
use smoltcp::wire::EthernetAddress;

use super::Match;
use super::classifier::Classifier;
use crate::headers::hosts::is_of_group;
use crate::headers::{self, FlowKey, Headers, Wanted, answered_flow};

/// See the module.
#[derive(Debug)]
pub struct BranchConditions {
    /// All cases.
    of_packets: Classifier,
    /// Those without ports and ICMP types.
    of_fragments: Classifier,
}

impl BranchConditions {
    /// Makes the conditions of a branch with one case for each of these matches, in order.
    #[must_use]
    pub fn new(matches: &[Match]) -> Self {
        let cases = || (0..).zip(matches);
        let is_portless = |matches: &Match| {
            matches.source_ports.is_none() && matches.destination_ports.is_none() && matches.icmp_type.is_none()
        };
        Self {
            of_packets: Classifier::new(cases()),
            of_fragments: Classifier::new(cases().filter(|(_, matches)| is_portless(matches))),
        }
    }

    /// Returns the case that an ICMP error meets: that of the answers to the packet that it quotes, or else one that names
    /// its type.
    #[inline(never)]
    fn met_by_error(&self, frame: &[u8], error: &FlowKey) -> Option<usize> {
        let answered = answered_flow(frame, error).ok();
        let of_answers = answered.and_then(|answered| self.of_packets.first_match(&wanted(answered, false)));
        of_answers.or_else(|| self.of_packets.first_match(&wanted(*error, true)))
    }
}

impl Conditions for BranchConditions {
    fn first_met(&self, frame: &[u8], port: PortIndex) -> Option<usize> {
        // Which station it is for does not count.
        let station = EthernetAddress(*frame.first_chunk()?);
        let read = headers::parse(frame, port, station).ok()?;
        if !headers::end_within(frame, &read, HEAD_BYTES) {
            return None;
        }
        match read {
            Headers::Flow(flow, _) => self.of_packets.first_match(&wanted(flow, false)),
            Headers::Fragment(fragment) => self.of_fragments.first_match(&wanted(fragment.flow, false)),
            Headers::IcmpError(error) => self.met_by_error(frame, &error),
            Headers::Arp(_) | Headers::NeighborDiscovery(_) => None,
        }
    }
}

/// Returns the key with which cases are searched.
#[inline]
fn wanted(flow: FlowKey, error: bool) -> FlowKey {
    flow.wanted_by(Wanted { group: is_of_group(flow.destination()), error })
}

#[cfg(test)]
mod tests;
