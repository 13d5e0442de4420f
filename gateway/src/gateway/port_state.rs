//! A port of the gateway: its device, the networks that it is in, and what it has yet to transmit.

use std::ops::Range;

use pinion_mma::buffer::Frame;
use pinion_mma::id::PortIndex;
use smoltcp::wire::EthernetAddress;

use super::announcements::Announcements;
use super::buffer_return::BufferReturn;
use super::config::PortSetup;
use super::deferred_burst::DeferredBurst;
use crate::headers::Ingress;
use crate::neighbors::answer_rate::AnswerRate;
use crate::neighbors::network::{Network, NetworkSetup};
use crate::neighbors::reverse_path::ReversePaths;
use crate::port::{BufferPool, Port, PortFacts, Promiscuous};

/// What a query of a port's device has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// Nothing that concerns neighbours.
    IsAsBefore,
    /// Others may be on the link: it came up, or the device has another hardware address, as one that was made again does.
    IsNew,
    /// The link went down.
    WentDown,
}

pub(super) struct PortState {
    pub(super) port: Box<dyn Port>,
    pub(super) index: PortIndex,
    pub(super) station: EthernetAddress,
    /// The networks that it is in, and the number of the first among those of all ports.
    pub(super) networks: Box<[Network]>,
    pub(super) first_network: u16,
    /// Whether its link was down when the device was queried last, at most a second ago.
    pub(super) is_down: bool,
    pub(super) announcements: Announcements,
    pub(super) answer_rate: AnswerRate,
    pub(super) promiscuous: Promiscuous,
    pub(super) deferred: DeferredBurst,
    /// Frames to transmit; at most a burst.
    pub(super) tx_batch: Vec<Frame>,
}

impl PortState {
    /// Returns the hardware address that a frame must have as its destination to be received: the port's own, or in
    /// promiscuous mode whichever the frame has.
    pub(super) fn receiver_of(&self, frame: &[u8]) -> EthernetAddress {
        match (self.promiscuous, frame.first_chunk()) {
            (Promiscuous::Yes, Some(receiver)) => EthernetAddress(*receiver),
            _ => self.station,
        }
    }

    /// Takes over what the device tells of itself. The port's addresses are announced anew if its link was down, or if
    /// they have another hardware address now (RFC 4861, section 7.2.6).
    pub(super) fn follow(&mut self, facts: &PortFacts) -> Followed {
        let station = EthernetAddress(facts.mac);
        let is_other = station != self.station;
        if is_other {
            self.station = station;
            self.networks.iter_mut().for_each(|network| network.set_station(station));
        }
        let was_down = std::mem::replace(&mut self.is_down, facts.link.is_down());
        match (was_down, self.is_down) {
            (false, true) => Followed::WentDown,
            (false, false) if !is_other => Followed::IsAsBefore,
            (_, false) => {
                self.announcements.restart();
                Followed::IsNew
            }
            (true, true) => Followed::IsAsBefore,
        }
    }

    /// Returns the numbers of its networks.
    pub(super) fn network_indices(&self) -> Range<u16> {
        self.first_network..self.first_network + self.networks.len() as u16
    }

    /// Drops a frame that was to leave while the link is down. It is counted as those that the port itself drops then.
    #[cold]
    pub(super) fn drop_without_link(&self, bin: &mut BufferReturn, frame: Frame) {
        self.port.counters().sent.dropped_link_down.add(1);
        bin.take(frame.into_buffer());
    }

    pub(super) fn transmit(&mut self, pool: &mut dyn BufferPool) {
        if !self.tx_batch.is_empty() {
            self.port.transmit(&mut self.tx_batch, pool);
        }
    }

    pub(super) fn enqueue_tx(&mut self, frame: Frame, pool: &mut dyn BufferPool) {
        if self.tx_batch.len() == self.tx_batch.capacity() {
            self.transmit(pool);
        }
        self.tx_batch.push(frame);
    }
}

pub(super) fn port_states(setups: Vec<PortSetup>, burst: usize) -> Box<[PortState]> {
    let mut first_network = 0;
    let state = |(index, setup): (u16, PortSetup)| {
        let state = port_state(PortIndex(index), setup, burst, first_network);
        first_network += state.networks.len() as u16;
        state
    };
    (0..).zip(setups).map(state).collect()
}

/// Returns where sources are reached by the ports' routes.
pub(super) fn reverse_paths(setups: &[PortSetup]) -> ReversePaths {
    let networks = (0..).zip(setups).flat_map(|(index, setup)| {
        let station = EthernetAddress(setup.port.facts().mac);
        let network = move |network: &NetworkSetup| {
            (Ingress { port: PortIndex(index), vlan: network.vlan }, Network::new(network, station))
        };
        setup.networks.iter().map(network)
    });
    ReversePaths::new(networks.collect(), setups.iter().map(|setup| setup.reverse_path).collect())
}

fn port_state(index: PortIndex, setup: PortSetup, burst: usize, first_network: u16) -> PortState {
    let PortSetup { port, networks, .. } = setup;
    let facts = port.facts();
    let station = EthernetAddress(facts.mac);
    PortState {
        index,
        station,
        networks: networks.iter().map(|network| Network::new(network, station)).collect(),
        first_network,
        is_down: facts.link.is_down(),
        announcements: Announcements::new(),
        answer_rate: AnswerRate::new(),
        promiscuous: port.promiscuous(),
        deferred: DeferredBurst::new(burst),
        tx_batch: Vec::with_capacity(burst),
        port,
    }
}
