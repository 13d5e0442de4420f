//! Devices of the node's ports that were deleted, and are to be made again: sockets on an interface, and taps.
//!
//! The node names a port by its place in the configuration. So all that it can have made is what the operator has configured.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use pinion_builder_client::supervised;
use pinion_confinement::isolated::run_in_copy;
use pinion_gateway::port::dpdk::PortConfig;
use pinion_gateway::port::dpdk::remake::{self, InterfaceId, TapWish};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::log::say;

/// Requests for a port that come sooner after the last one are passed over: a node that was taken over must not have the machine make
/// sockets all the time. Ports ask once a second.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often a port gets sockets for the same interface. An interface that was made again is another one, and one that was moved to another
/// namespace and back is the same. A node that was taken over could keep all of them, and each has rings in the kernel's memory.
const SETS_MAX: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Devices {
    ports: Vec<ServedPort>,
}

/// A port, and what was done for it.
#[derive(Debug)]
struct ServedPort {
    config: PortConfig,
    /// When it was last asked for something.
    last: Option<Instant>,
    served: Served,
    /// The last error that was said, so that each is said once.
    said: Option<String>,
}

/// The interface that a port got sockets for last, and how many sets of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Served {
    interface: Option<InterfaceId>,
    sets: u32,
}

impl Served {
    /// Returns what was served after another set for this interface, if that may be.
    fn once_more(self, interface: InterfaceId) -> Result<Self, String> {
        match self {
            Self { interface: Some(last), sets } if last == interface && sets >= SETS_MAX => Err(format!(
                "it got sockets for its interface {sets} times, and gets no more until the interface is made again: restart piniond"
            )),
            Self { interface: Some(last), sets } if last == interface => Ok(Self { sets: sets + 1, ..self }),
            _ => Ok(Self { interface: Some(interface), sets: 1 }),
        }
    }
}

impl Devices {
    pub(super) fn new(ports: &[PortConfig]) -> Self {
        let port = |config: &PortConfig| ServedPort {
            config: config.clone(),
            last: None,
            served: Served::default(),
            said: None,
        };
        Self { ports: ports.iter().map(port).collect() }
    }

    /// Makes the sockets of a port and sends them to the descriptor. Without its interface there is no reply, nor if its device has none.
    pub(super) fn make_sockets(&mut self, port: u16, descriptors: Vec<OwnedFd>) {
        let Some(port) = self.due(port, remake::uses_packet_sockets) else { return };
        let Ok([to]) = <[OwnedFd; 1]>::try_from(descriptors) else { return };
        let (config, served) = (&port.config, port.served);
        let made = in_copy(|| {
            let made = remake::packet_sockets(config).map_err(|error| error.to_string())?;
            let served = served.once_more(made.interface_id())?;
            let sockets: Vec<_> = [&made.control].into_iter().chain(&made.queues).map(AsFd::as_fd).collect();
            supervised::reply(to.as_fd(), made.interface, &sockets).map_err(|error| error.to_string())?;
            Ok((served.interface, served.sets))
        });
        port.served = made.as_ref().map_or(served, |&(interface, sets)| Served { interface, sets });
        port.note(made.err());
    }

    /// Attaches the files of a tap to it. The first descriptor is a socket of its namespace.
    pub(super) fn attach_tap(&mut self, port: u16, wish: &TapWish, mut descriptors: Vec<OwnedFd>) {
        let is_other = |device: &str| !remake::uses_packet_sockets(device);
        let Some(port) = self.due(port, is_other).filter(|_| descriptors.len() > 1) else { return };
        let (config, control) = (&port.config, descriptors.remove(0));
        let attached = in_copy(|| {
            let attached =
                control.try_clone().and_then(|control| remake::attach_tap(config, wish, control, &descriptors));
            attached.map_err(|error| error.to_string())
        });
        port.note(attached.err());
    }

    /// Returns the port at this place, if its device is one for which that can be done, and it was not asked for just now.
    fn due(&mut self, port: u16, is_for: impl FnOnce(&str) -> bool) -> Option<&mut ServedPort> {
        let port = self.ports.get_mut(usize::from(port)).filter(|port| is_for(&port.config.device))?;
        if port.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return None;
        }
        port.last = Some(Instant::now());
        Some(port)
    }
}

impl ServedPort {
    /// Says why the device could not be made again, unless that is what was said last.
    fn note(&mut self, error: Option<String>) {
        if let Some(line) = self.line(error) {
            say(&line);
        }
    }

    fn line(&mut self, error: Option<String>) -> Option<String> {
        let is_said = error == self.said;
        self.said = error;
        let error = self.said.as_ref().filter(|_| !is_said)?;
        Some(format!("the device of port {} cannot be made again now: {error}", self.config.name))
    }
}

/// Works in a process of its own, as a network namespace is entered for good, and returns what that leads to.
fn in_copy<T: Serialize + DeserializeOwned>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let done = || -> io::Result<Vec<u8>> {
        let (mut reports, report) = io::pipe()?;
        let process = run_in_copy(|| {
            let done = serde_json::to_vec(&work()).expect("it has nothing that JSON has not");
            u8::from((&report).write_all(&done).is_err())
        })?;
        drop(report);
        let mut done = Vec::new();
        reports.read_to_end(&mut done)?;
        process.wait()?;
        Ok(done)
    };
    let done = done().map_err(|error| error.to_string())?;
    serde_json::from_slice(&done).map_err(|_| "the process that was to do it ended early".to_owned())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Devices {
        Devices::new(&[PortConfig::new("lan", "net_af_packet0,iface=a"), PortConfig::new("tap", "net_tap0,iface=b")])
    }

    #[test]
    fn a_port_is_named_by_its_place_and_served_now_and_then() {
        let mut devices = devices();
        assert_eq!(devices.due(0, |_| true).map(|port| port.config.name.clone()), Some("lan".to_owned()));
        assert!(devices.due(0, |_| true).is_none(), "too soon");
        assert!(devices.due(2, |_| true).is_none(), "there is no such port");
    }

    #[test]
    fn packet_sockets_are_made_only_for_ports_that_use_them() {
        let mut devices = devices();
        assert!(devices.due(1, remake::uses_packet_sockets).is_none());
        assert!(devices.due(0, remake::uses_packet_sockets).is_some());
        assert!(devices.due(1, |_| true).is_some(), "what was refused does not count");
    }

    #[test]
    fn a_port_gets_sockets_for_one_interface_a_few_times_and_for_one_that_was_made_again() {
        let mut served = Served::default();
        for _ in 0..SETS_MAX {
            served = served.once_more((1, 7)).unwrap();
        }
        let refused = served.once_more((1, 7)).unwrap_err();
        assert!(refused.contains("got sockets for its interface 8 times"), "{refused}");
        for other in [(1, 8), (2, 7)] {
            assert_eq!(served.once_more(other), Ok(Served { interface: Some(other), sets: 1 }));
        }
    }

    #[test]
    fn an_error_is_said_once_until_another_comes_or_the_device_was_made() {
        let mut devices = devices();
        let port = &mut devices.ports[0];
        let mut is_said = |error: Option<&str>| port.line(error.map(str::to_owned)).is_some();
        let errors = [Some("a"), Some("a"), Some("b"), None, Some("b"), Some("b")];
        assert_eq!(errors.map(&mut is_said), [true, false, true, false, true, false]);
    }
}
