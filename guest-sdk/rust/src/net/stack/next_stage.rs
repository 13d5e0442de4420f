//! Connections to the chain's next stage, on behalf of a peer: its segments seem to come from that peer's address.
//!
//! ```text
//!   peer --connection--> the function --connection of its own, by output 0--> next stage
//!                                     <------- replies, which go backwards --
//! ```
//!
//! The node marks the next stage's replies, whatever their addresses. Only these belong to such a connection, and they belong to no other: see
//! [`Flow::by`]. In the last stage of a chain the SYN leaves the node, and no answer from the network counts.

use super::{Own, Stack, random_seed};
use crate::net::link::Flow;
use crate::net::outbound::{ConnectError, StreamId};
use crate::net::own_flow::CONNECT_NS_MAX;

/// The first of the dynamic ports (RFC 6335, section 6), from which the local one is chosen at random.
const DYNAMIC_FIRST: u16 = 49_152;
const DYNAMIC_COUNT: u16 = u16::MAX - DYNAMIC_FIRST + 1;
const _: () = assert!(DYNAMIC_COUNT > crate::net::CONNECTIONS_MAX);

impl Stack {
    /// Begins to open a connection to a port of the next stage, for the peer of the open connection `from`.
    ///
    /// # Errors
    ///
    /// The next stage's answers would not come back, its port is 0, or all slots are in use by connections that cannot be replaced.
    pub(in crate::net) fn connect_next_stage(
        &mut self,
        from: u16,
        port: u16,
        now_ns: u64,
    ) -> Result<StreamId, ConnectError> {
        let place = &self.places[usize::from(from)];
        let (link, flow) = (place.link.onwards().ok_or(ConnectError::NoWayBack)?, place.flow);
        let key = flow.and_then(|flow| self.unused(&flow, port)).ok_or(ConnectError::RefusedByPeer)?;
        let number = self.vacant(now_ns).ok_or(ConnectError::NoRoom)?;
        self.serial += 1;
        let place = &mut self.places[usize::from(number)];
        (place.serial, place.failure) = (self.serial, None);
        place.own = Some(Own::NextStage { until_ns: now_ns + CONNECT_NS_MAX });
        self.shake_hands(number, key, link, now_ns);
        self.hurry(number);
        Ok(self.id(number))
    }

    /// Finds a flow to the next stage that is not in use. `None` if there can be none to this port.
    fn unused(&self, flow: &Flow, port: u16) -> Option<Flow> {
        let first = (random_seed() % u64::from(DYNAMIC_COUNT)) as u16;
        let local = |step: u16| DYNAMIC_FIRST + (first + step) % DYNAMIC_COUNT;
        let mut flows = (0..DYNAMIC_COUNT).map(|step| flow.onwards(port, local(step)));
        flows.find(|flow| flow.is_between_hosts() && self.flows.find(flow).is_none())
    }
}
