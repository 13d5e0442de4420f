//! A port on AF_XDP. If its interface is deleted, it continues on packet sockets when there is one of that name again.
//!
//! Its driver cannot be opened anew: that takes rights, for sockets and a program, that a node gives up before it serves
//! clients, and no other process can open it for the node. Packet sockets can be made by one that has the rights
//! ([`crate::port::dpdk::remake`]). They are slower, so the log says so; with the next start the port is on AF_XDP again.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pinion_mma::buffer::Frame;

use super::buffers::pool::DpdkPool;
use super::packet::PacketPort;
use super::port::DpdkPort;
use super::port_config::PortConfig;
use super::remake;
use crate::port::{Alarm, BufferPool, LinkState, Port, PortCounters, PortFacts, Promiscuous};

/// See the module.
pub(crate) struct XdpPort {
    xdp: DpdkPort,
    /// Made when the port is opened: later the node has no right to. None if packet sockets cannot carry the port's MTU.
    stand_in: Option<PacketPort>,
    /// The interface of `xdp` has gone.
    is_stood_in: bool,
}

impl XdpPort {
    /// Makes a port of one on AF_XDP that has these settings.
    pub(crate) fn new(xdp: DpdkPort, config: &PortConfig, pool: &DpdkPool) -> Self {
        let config = remake::on_packet_sockets(config);
        let stand_in = PacketPort::waiting(&config, xdp.facts().mac, xdp.counters(), pool.clone());
        let port = xdp.name();
        let stand_in = stand_in.inspect_err(|error| {
            tracing::warn!(port, %error, "if its interface is deleted, the port cannot continue on packet sockets");
        });
        Self { stand_in: stand_in.ok(), xdp, is_stood_in: false }
    }

    fn used(&self) -> &dyn Port {
        match &self.stand_in {
            Some(stand_in) if self.is_stood_in => stand_in,
            _ => &self.xdp,
        }
    }

    fn used_mut(&mut self) -> &mut dyn Port {
        match &mut self.stand_in {
            Some(stand_in) if self.is_stood_in => stand_in,
            _ => &mut self.xdp,
        }
    }
}

impl Port for XdpPort {
    fn name(&self) -> &str {
        self.xdp.name()
    }

    fn device(&self) -> &str {
        self.xdp.device()
    }

    fn facts(&self) -> PortFacts {
        let facts = self.used().facts();
        let missed_before = if self.is_stood_in { self.xdp.facts().missed } else { 0 };
        PortFacts { missed: missed_before + facts.missed, ..facts }
    }

    fn tend(&mut self) {
        self.used_mut().tend();
        if let Some(stand_in) = &mut self.stand_in
            && !self.is_stood_in
            && self.xdp.facts().link == LinkState::Lost
        {
            stand_in.tend();
            self.is_stood_in = stand_in.facts().link != LinkState::Lost;
            if self.is_stood_in {
                tracing::warn!(
                    port = self.xdp.name(),
                    "the port's interface has gone: with the next one of its name it continues on packet sockets, which \
                     are slower than AF_XDP, until piniond starts again"
                );
            }
        }
    }

    fn promiscuous(&self) -> Promiscuous {
        self.xdp.promiscuous()
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        self.used_mut().receive(frames, max)
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        self.used_mut().transmit(frames, pool)
    }

    fn arm(&mut self) -> Alarm {
        self.used_mut().arm()
    }

    fn descriptors(&self) -> &[OwnedFd] {
        self.used().descriptors()
    }

    fn disarm(&mut self) {
        self.used_mut().disarm();
    }

    fn counters(&self) -> &Arc<PortCounters> {
        self.xdp.counters()
    }
}
