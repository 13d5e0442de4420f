//! Net-Out: frames of FWPs that leave, and the node's own messages to neighbours.
//!
//! ```text
//!   MMA --frame, sender--> judge --as it is------------------------------> port's batch
//!                            \--by the node--> next hop --known station--> port's batch
//!                                                   \--asked for--> waits --answer--> port's batch
//! ```

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use pinion_mma::buffer::Frame;
use pinion_mma::id::Sender;
use pinion_mma::link::Outbound;
use smoltcp::wire::{EthernetAddress, EthernetFrame};

use super::announcements::{Conflict, announce};
use super::buffer_return::BufferReturn;
use super::{Gateway, PortState};
use crate::drops::DropReason;
use crate::headers::Vlan;
use crate::headers::hosts::{is_of_group, is_of_host};
use crate::id::ChainIndex;
use crate::leaving::{Exit, Judge, Leaving};
use crate::neighbors::answer_rate::AnswerRate;
use crate::neighbors::link_header::Tags;
use crate::neighbors::messages::{self, Heard, MESSAGE_BYTES_MAX};
use crate::neighbors::network::Network;
use crate::neighbors::table::{Due, Lookup, NEIGHBORS_MAX, NeighborTable, NetworkIndex};
use crate::neighbors::waiting::WaitingFrames;

/// Neighbours that are looked at in one sweep.
const LOOKED_AT: usize = NEIGHBORS_MAX / 16;
/// Ways to addresses that were looked up of late, and for how long they are used without another look.
const RECENT: usize = 256;
const RECENT_NS: u64 = 1_000_000_000;

/// Reads a message of a neighbour, and may turn it into its answer.
pub(super) type Reader = fn(&Network, EthernetAddress, &mut [u8], usize) -> Result<Heard, DropReason>;

/// What Net-Out knows.
pub(super) struct NetOut {
    judge: Judge,
    table: NeighborTable,
    waiting: WaitingFrames,
    recent: Box<[Option<Recent>]>,
    /// Requests about flows that were taken in this poll.
    pub(super) requests: Vec<(Frame, Sender)>,
}

/// The station to which packets for an address go.
#[derive(Clone, Copy)]
struct Recent {
    network: NetworkIndex,
    to: IpAddr,
    station: EthernetAddress,
    /// The version of the table by which it was found.
    version: u32,
    until_ns: u64,
}

/// Where a frame that the node addresses goes.
enum Way {
    Station(EthernetAddress),
    Neighbor(IpAddr),
}

impl NetOut {
    /// Makes room for so many frames that wait for neighbours, and for so many requests in one poll.
    pub(super) fn new(waiting_max: u16, requests_max: usize) -> Self {
        Self {
            judge: Judge::new(),
            table: NeighborTable::new(),
            waiting: WaitingFrames::new(waiting_max),
            recent: vec![None; RECENT].into(),
            requests: Vec::with_capacity(requests_max),
        }
    }

    /// Forgets what was judged by rules that are no longer in force.
    pub(super) fn forget_judged(&mut self) {
        self.judge.forget();
    }

    /// Forgets the stations behind a port, where others may be now.
    pub(super) fn forget_stations(&mut self, networks: Range<u16>) {
        self.table.forget_stations(networks);
    }

    /// Forgets the neighbours behind a port whose link went down, and drops the frames that wait for them.
    pub(super) fn link_went_down(&mut self, state: &PortState, bin: &mut BufferReturn) {
        let Self { table, waiting, .. } = self;
        table.forget_all(state.network_indices(), |neighbor| {
            while let Some((frame, _)) = waiting.pop(neighbor) {
                state.drop_without_link(bin, frame);
            }
        });
    }

    /// Takes any frame that waits for a neighbour.
    pub(super) fn pop_waiting(&mut self) -> Option<Frame> {
        self.waiting.pop_any().map(|(frame, _)| frame)
    }

    /// Returns how many frames wait for neighbours.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns a station that was found for an address just before.
    #[inline]
    fn recent(&self, network: NetworkIndex, to: IpAddr, now_ns: u64) -> Option<EthernetAddress> {
        let recent = self.recent[recent_place(network, to)]?;
        let is_valid = recent.network == network && recent.to == to && recent.version == self.table.version();
        (is_valid && now_ns < recent.until_ns).then_some(recent.station)
    }

    fn note_recent(&mut self, network: NetworkIndex, to: IpAddr, station: EthernetAddress, now_ns: u64) {
        let version = self.table.version();
        self.recent[recent_place(network, to)] =
            Some(Recent { network, to, station, version, until_ns: now_ns + RECENT_NS });
    }
}

fn recent_place(network: NetworkIndex, to: IpAddr) -> usize {
    let low = match to {
        IpAddr::V4(to) => to.octets()[3],
        IpAddr::V6(to) => to.octets()[15],
    };
    (usize::from(low) ^ usize::from(network.0)) % RECENT
}

/// Returns where a packet for `to` goes in a network.
fn way(network: &Network, to: IpAddr) -> Result<Way, DropReason> {
    if is_of_group(to) {
        return Ok(Way::Station(messages::station_of_group(to)));
    }
    // A packet to all hosts of a network may come from far away, and all of them would answer its sender (RFC 2644).
    if !is_of_host(to) || matches!(to, IpAddr::V4(to) if network.is_broadcast(to)) {
        return Err(DropReason::NoRoute);
    }
    match network.next_hop(to) {
        // The node does not receive what it sends.
        Some(hop) if !network.has(hop) => Ok(Way::Neighbor(hop)),
        _ => Err(DropReason::NoRoute),
    }
}

impl PortState {
    /// Returns the port's network of a VLAN, and its number.
    #[inline]
    pub(super) fn network(&self, vlan: Vlan) -> Option<(NetworkIndex, &Network)> {
        let at = self.networks.iter().position(|network| network.vlan() == vlan)?;
        Some((NetworkIndex(self.first_network + at as u16), &self.networks[at]))
    }

    fn network_at(&self, index: NetworkIndex) -> Option<&Network> {
        self.networks.get(usize::from(index.0.checked_sub(self.first_network)?))
    }

    fn set_tags(&mut self, index: NetworkIndex, tags: Tags) {
        if let Some(network) = self.networks.get_mut(usize::from(index.0 - self.first_network)) {
            network.set_tags(tags);
        }
    }

    /// Sends a message of the node's own, which `write` writes.
    pub(super) fn send_own(&mut self, bin: &mut BufferReturn, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        if self.is_down {
            return;
        }
        let Some(buffer) = bin.buffer() else { return };
        if buffer.capacity() < MESSAGE_BYTES_MAX as u32 {
            return bin.take(buffer);
        }
        let mut frame = Frame::new(buffer, MESSAGE_BYTES_MAX as u32).of_port(self.index);
        match write(frame.bytes_mut()) {
            Some(len) => {
                frame.set_len(len as u32);
                bin.observer.port(self.index).made.add(1);
                self.enqueue_tx(frame, &mut *bin.pool);
            }
            None => bin.take(frame.into_buffer()),
        }
    }
}

/// Writes the Ethernet addresses of a frame.
fn address(frame: &mut Frame, to: EthernetAddress, from: EthernetAddress) {
    if let Some(header) = frame.bytes_mut().first_chunk_mut::<12>() {
        header[..6].copy_from_slice(&to.0);
        header[6..].copy_from_slice(&from.0);
    }
}

impl Gateway {
    pub(super) fn net_out(&mut self, max: usize, now_ns: u64) -> usize {
        let Self { ports, invoke, handover, bin, out, assigner, .. } = self;
        let count = handover.take_outbound(max, |Outbound { frame, sender }| {
            let port = usize::from(frame.port().0);
            match (ports.get_mut(port), &mut *invoke) {
                (Some(state), _) => {
                    let (rules, origins, mut claims) = assigner.known_of_leaving();
                    let is_of_flow = |packet: Leaving<'_>| claims.is_of_flow(packet, (sender, state.index), now_ns);
                    let by = (rules.sender(sender), state.index, state.station);
                    match out.judge.judge(origins, frame.bytes(), by, is_of_flow, now_ns) {
                        Ok(Exit::AsItIs) => state.enqueue_tx(frame, &mut *bin.pool),
                        Ok(Exit::ByNode { vlan, to }) => out.route(state, bin, frame, (sender, vlan, to), now_ns),
                        Ok(Exit::Request) => out.requests.push((frame, sender)),
                        Err(reason) => drop_of_sender(bin, frame, sender, reason),
                    }
                }
                (None, Some(invoke)) if invoke.index() == frame.port() => {
                    invoke.answer(frame.bytes());
                    bin.take(frame.into_buffer());
                }
                (None, _) => {
                    debug_assert!(false, "MMA names port {port} of {}", ports.len());
                    bin.take(frame.into_buffer());
                }
            }
        });
        if !out.requests.is_empty() {
            self.answer_requests(now_ns);
        }
        for state in &mut self.ports {
            state.transmit(&mut *self.bin.pool);
        }
        count
    }

    /// Reads a message of a neighbour, notes what it says, and answers it.
    #[inline(never)]
    pub(super) fn hear(&mut self, port: usize, mut frame: Frame, vlan: Vlan, read: Reader, now_ns: u64) {
        let Self { ports, bin, out, .. } = self;
        let state = &mut ports[port];
        let Some((index, network)) = state.network(vlan) else {
            return bin.drop_frame(frame, DropReason::VlanNeighbor);
        };
        let tags = Tags::of(frame.bytes(), vlan);
        let len = frame.len() as usize;
        let asker = EthernetFrame::new_checked(frame.bytes()).map(|frame| frame.src_addr());
        let heard = match read(network, state.station, frame.space_mut(), len) {
            Ok(heard) => heard,
            Err(reason) => {
                if reason == DropReason::AddressConflict
                    && let (Some(address), Ok(station)) = (messages::claimed(frame.bytes()), asker)
                {
                    state.announcements.note_conflict(Conflict { network: index, address, station });
                }
                return bin.drop_frame(frame, reason);
            }
        };
        state.set_tags(index, tags);
        let known = heard.told.and_then(|told| out.table.note(index, told, now_ns));
        let is_in_rate = |rate: &mut AnswerRate| asker.is_ok_and(|asker| rate.take(asker, now_ns));
        match heard.answer_len {
            Some(_) if !is_in_rate(&mut state.answer_rate) => bin.drop_frame(frame, DropReason::NeighborRate),
            Some(len) => {
                frame.set_len(len as u32);
                bin.observer.port(state.index).neighbors_answered.add(1);
                state.enqueue_tx(frame, &mut *bin.pool);
            }
            None if known.is_some() => {
                bin.observer.port(state.index).neighbors_heard.add(1);
                bin.take(frame.into_buffer());
            }
            None => bin.drop_frame(frame, DropReason::NotForUs),
        }
        if let Some((neighbor, station)) = known.and_then(|it| Some((it, out.table.station(it)?))) {
            while let Some((mut frame, _)) = out.waiting.pop(neighbor) {
                address(&mut frame, station, state.station);
                state.enqueue_tx(frame, &mut *bin.pool);
            }
        }
    }

    /// Asks for neighbours again and gives up those that do not answer, a part of them at a time; and tells others of the
    /// node's addresses.
    pub(super) fn keep_neighbors(&mut self, now_ns: u64) {
        let Self { ports, bin, out, .. } = self;
        let NetOut { table, waiting, .. } = out;
        let view = Arc::clone(bin.observer.neighbors());
        table.go_round(LOOKED_AT, now_ns, &view, |due| follow(ports, bin, waiting, due));
        for state in ports.iter_mut() {
            announce(state, bin, now_ns);
        }
    }
}

impl NetOut {
    /// Sends a frame to the next hop on its way, or lets it wait until that has answered.
    #[inline]
    fn route(
        &mut self,
        state: &mut PortState,
        bin: &mut BufferReturn,
        mut frame: Frame,
        (sender, vlan, to): (Sender, Vlan, IpAddr),
        now_ns: u64,
    ) {
        let Some((index, network)) = state.network(vlan) else {
            return drop_of_sender(bin, frame, sender, DropReason::NoRoute);
        };
        if let Some(station) = self.recent(index, to, now_ns) {
            address(&mut frame, station, state.station);
            return state.enqueue_tx(frame, &mut *bin.pool);
        }
        // No neighbour is asked for there, and no way is noted, so that the one above is never taken.
        if state.is_down {
            return state.drop_without_link(bin, frame);
        }
        let lookup = match way(network, to) {
            Ok(Way::Station(station)) => Lookup::Station(station),
            Ok(Way::Neighbor(hop)) => self.table.look_up(index, hop, sender.tenant, now_ns),
            Err(reason) => return drop_of_sender(bin, frame, sender, reason),
        };
        match lookup {
            Lookup::Station(station) => {
                self.note_recent(index, to, station, now_ns);
                address(&mut frame, station, state.station);
                state.enqueue_tx(frame, &mut *bin.pool);
            }
            Lookup::Wait(neighbor) => {
                let Self { table, waiting, .. } = self;
                // It waits before the neighbour is looked at: if that is given up now, the frame is one of those dropped.
                if let Err(frame) = waiting.push(neighbor, frame, sender) {
                    drop_of_sender(bin, frame, sender, DropReason::UnresolvedNeighbor);
                }
                let states = std::slice::from_mut(state);
                table.look_at_one(neighbor, now_ns, |due| follow(states, bin, waiting, due));
            }
            Lookup::Unresolved => drop_of_sender(bin, frame, sender, DropReason::UnresolvedNeighbor),
        }
    }
}

/// Does what is due for a neighbour.
fn follow(ports: &mut [PortState], bin: &mut BufferReturn, waiting: &mut WaitingFrames, due: Due) {
    match due {
        Due::Ask { network, address, had } => {
            let Some(state) = ports.iter_mut().find(|state| state.network_at(network).is_some()) else { return };
            let station = state.station;
            // Taken out, as the port sends what is written with it.
            let networks = std::mem::take(&mut state.networks);
            if let Some(asked) = networks.get(usize::from(network.0 - state.first_network)) {
                state.send_own(bin, |space| messages::write_request(asked, station, space, address, had));
            }
            state.networks = networks;
        }
        Due::GiveUp(neighbor) => {
            while let Some((frame, sender)) = waiting.pop(neighbor) {
                drop_of_sender(bin, frame, sender, DropReason::UnresolvedNeighbor);
            }
        }
    }
}

#[cold]
pub(super) fn drop_of_sender(bin: &mut BufferReturn, frame: Frame, sender: Sender, reason: DropReason) {
    bin.drop_of_chain(frame, Some(ChainIndex(sender.chain.into())), reason);
}
