//! Devices of the node's ports that were deleted, and are to be made again: sockets on an interface, and taps.
//!
//! The node names a port by its place in the configuration. So all that it can have made is what the operator has configured.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use pinion_builder_client::supervised;
use pinion_confinement::isolated::run_in_copy;
use pinion_gateway::port::dpdk::PortConfig;
use pinion_gateway::port::dpdk::remake::{self, MadeSockets, TapWish};

use super::log::say;

/// Requests for a port that come sooner after the last one are passed over: a node that was taken over must not have the machine make
/// sockets all the time. Ports ask once a second.
const INTERVAL: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(super) struct Devices {
    ports: Vec<(PortConfig, Option<Instant>)>,
}

impl Devices {
    pub(super) fn new(ports: &[PortConfig]) -> Self {
        Self { ports: ports.iter().map(|port| (port.clone(), None)).collect() }
    }

    /// Makes the sockets of a port and sends them to the descriptor. Without its interface there is no reply.
    pub(super) fn make_sockets(&mut self, port: u16, descriptors: Vec<OwnedFd>) {
        let Some(config) = self.due(port) else { return };
        let Ok([to]) = <[OwnedFd; 1]>::try_from(descriptors) else { return };
        self.in_copy(&|| {
            let Ok(MadeSockets { interface, control, queues }) = remake::packet_sockets(&config) else { return Ok(()) };
            let sockets: Vec<_> = [&control].into_iter().chain(&queues).map(AsFd::as_fd).collect();
            supervised::reply(to.as_fd(), interface, &sockets)
        });
    }

    /// Attaches the files of a tap to it. The first descriptor is a socket of its namespace.
    pub(super) fn attach_tap(&mut self, port: u16, wish: &TapWish, mut descriptors: Vec<OwnedFd>) {
        let Some(config) = self.due(port).filter(|_| descriptors.len() > 1) else { return };
        let control = descriptors.remove(0);
        self.in_copy(&|| remake::attach_tap(&config, wish, control.try_clone()?, &descriptors));
    }

    fn due(&mut self, port: u16) -> Option<PortConfig> {
        let (config, last) = self.ports.get_mut(usize::from(port))?;
        let is_due = last.is_none_or(|last| last.elapsed() >= INTERVAL);
        is_due.then(|| {
            *last = Some(Instant::now());
            config.clone()
        })
    }

    /// Works in a process of its own, as a network namespace is entered for good.
    fn in_copy(&self, work: &dyn Fn() -> io::Result<()>) {
        let work = || match work() {
            Ok(()) => 0,
            Err(error) => {
                say(&format!("a device of the node cannot be made again: {error}"));
                1
            }
        };
        if let Err(error) = run_in_copy(work).and_then(|process| process.wait()) {
            say(&format!("a device of the node cannot be made again: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_by_its_place_and_served_now_and_then() {
        let mut devices = Devices::new(&[PortConfig::new("lan", "net_tap0,iface=a")]);
        assert_eq!(devices.due(0).map(|config| config.name), Some("lan".to_owned()));
        assert!(devices.due(0).is_none(), "too soon");
        assert!(devices.due(1).is_none(), "there is no such port");
    }
}
