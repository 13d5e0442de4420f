//! The supervisor: a small process that starts the node and keeps the rights that the node gives up.
//!
//! ```text
//!   supervisor --fork--> node: opens devices and files, gives up its rights, serves
//!       |   <--Up, Build, Sockets, Tap--|
//!       |------start------> builders, each isolated as another user
//!       '------make again-> devices of the configuration that were deleted
//! ```
//!
//! It has one thread, reads nothing but the node's short requests, and never a packet, a module or a message of the API. When the node
//! crashes after it was up, it is started again, as a master process of nginx does with its workers; builders end with the node that asked
//! for them. A signal to stop is passed on. The process of the supervisor is the one that was started, so its end is the end of all.

mod builders;
#[cfg(feature = "dpdk")]
mod devices;
mod interfaces;
mod log;

use std::fs;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_builder_client::supervised::{self, Request};
use pinion_confinement::isolated::{Ended, Isolation, Process, close_all_but, run_in_copy, without_input};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, signal_name, unregister};

use self::builders::Builders;
pub use self::interfaces::XdpInterface;
use self::log::say;

/// The longest pause before a node that keeps crashing is started again.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A node that ran for so long is started again at once.
const LONG_RUN: Duration = Duration::from_secs(60);
/// The first pause.
const PAUSE: Duration = Duration::from_secs(1);

/// What the supervisor has to know.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    /// The builder's program.
    pub builder: PathBuf,
    /// Number of the user that builders run as.
    pub builder_user: u32,
    /// Interfaces from which the node's program is to be detached when it has ended.
    pub interfaces: Vec<XdpInterface>,
    /// The node's ports, whose devices are made again when the node asks for it.
    #[cfg(feature = "dpdk")]
    pub ports: Vec<pinion_gateway::port::dpdk::PortConfig>,
    /// The node's socket, which the node has no right to remove at its end.
    pub socket: PathBuf,
}

/// What the node is given by its supervisor.
#[derive(Debug, Clone)]
pub struct Supervised {
    /// For requests.
    pub link: Arc<OwnedFd>,
    /// Why builders are isolated less than they should be, if they are.
    pub weakness: Option<String>,
}

/// Runs nodes, one after another until one ends by itself. Returns the status with which the process is to end.
///
/// # Errors
/// If a node cannot be started.
pub fn supervise(config: &SupervisorConfig, node: impl Fn(Supervised) -> u8) -> io::Result<u8> {
    let (isolation, weakness) = Isolation::strongest(config.builder_user);
    let signals = Signals::catch()?;
    let place = SocketPlace::of(&config.socket);
    let (mut pauses, mut was_up) = (Pauses::default(), false);
    loop {
        let (link, of_node) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let began = Instant::now();
        rustix::io::ioctl_fionbio(&link, true)?;
        let process = run_in_copy(|| {
            signals.leave_to_node();
            // Of the supervisor's own ends it must have none, nor read what a terminal's user types.
            let is_alone = close_all_but(&[of_node.as_fd()]).and_then(|()| without_input());
            if let Err(error) = is_alone {
                say(&format!("the node cannot be started: {error}"));
                return 1;
            }
            node(Supervised {
                link: Arc::new(of_node.try_clone().expect("copied at once")),
                weakness: weakness.clone(),
            })
        })?;
        drop(of_node);
        let mut watch = Watch {
            process,
            link: Some(link),
            has_opened: false,
            is_up: false,
            is_stopping: false,
            builders: Builders::new(config, isolation),
            #[cfg(feature = "dpdk")]
            devices: devices::Devices::new(&config.ports),
        };
        let ended = watch.run(&signals)?;
        let Watch { has_opened, is_up, is_stopping, .. } = watch;
        // Its builders end with it.
        drop(watch);
        if has_opened {
            config.interfaces.iter().for_each(XdpInterface::detach);
            place.clear();
        }
        was_up |= is_up;
        let (how, status) = described(ended);
        if [0, BAD_INPUT].contains(&status) {
            return Ok(status);
        }
        if is_stopping || !was_up {
            say(&format!("the node was ended {how}"));
            return Ok(status);
        }
        let pause = pauses.next(began.elapsed());
        say(&format!("the node was ended {how}; it is started again in {} s", pause.as_secs()));
        if signals.come_within(pause)? {
            return Ok(0);
        }
    }
}

/// The status of a node whose operator has to change something.
pub const BAD_INPUT: u8 = 2;

/// Returns how a node ended, for the log, and as an exit status.
fn described(ended: Ended) -> (String, u8) {
    match ended {
        Ended::Status(status) => (format!("with status {status}"), u8::try_from(status).unwrap_or(u8::MAX)),
        Ended::Signal(signal) => {
            let name = signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned);
            // As a shell says it.
            (format!("by signal {name}"), 128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
        }
    }
}

/// Where the node's socket is.
struct SocketPlace {
    socket: PathBuf,
    /// Its folder, if that was not there before the node.
    made_folder: Option<PathBuf>,
}

impl SocketPlace {
    fn of(socket: &Path) -> Self {
        let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        Self { socket: socket.to_owned(), made_folder: folder.map(Path::to_owned) }
    }

    /// Removes a socket on which nothing listens any more, and the folder that was made for it if it is empty.
    fn clear(&self) {
        let is_left =
            UnixStream::connect(&self.socket).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if is_left {
            let _ = fs::remove_file(&self.socket);
        }
        if let Some(folder) = &self.made_folder {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// How long to wait before a node is started again.
#[derive(Debug, Default)]
struct Pauses(Duration);

impl Pauses {
    /// Returns the pause after a node that ran for so long: none after the first crash, then longer each time.
    fn next(&mut self, ran: Duration) -> Duration {
        let pause = if ran >= LONG_RUN { Duration::ZERO } else { self.0 };
        self.0 = (pause * 2).clamp(PAUSE, PAUSE_MAX);
        pause
    }
}

/// Signals to stop, as bytes in a pipe.
struct Signals {
    caught: PipeReader,
    ids: Vec<SigId>,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let (caught, tells) = io::pipe()?;
        rustix::io::ioctl_fionbio(&caught, true)?;
        let register = |signal| pipe::register(signal, tells.try_clone()?);
        let ids = [SIGTERM, SIGINT, SIGHUP].into_iter().map(register).collect::<io::Result<_>>()?;
        Ok(Self { caught, ids })
    }

    /// In the copy of this process that becomes the node, which has its own way with signals.
    fn leave_to_node(&self) {
        for id in &self.ids {
            unregister(*id);
        }
    }

    fn take(&self) -> io::Result<()> {
        match rustix::io::read(&self.caught, &mut [0; 64]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits. Returns whether one came.
    fn come_within(&self, pause: Duration) -> io::Result<bool> {
        let mut ready = [PollFd::new(&self.caught, PollFlags::IN)];
        Ok(polled(&mut ready, Some(pause))? > 0)
    }
}

/// Polls; a signal that interrupts it has made its pipe readable.
fn polled(ready: &mut [PollFd<'_>], pause: Option<Duration>) -> io::Result<usize> {
    let pause =
        pause.map(|pause| Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() });
    loop {
        match poll(ready, pause.as_ref()) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled?),
        }
    }
}

/// A node that runs, with its builders.
struct Watch {
    process: Process,
    /// None once the node has closed its end, or has sent what is no request.
    link: Option<OwnedFd>,
    /// It has begun to open its devices.
    has_opened: bool,
    is_up: bool,
    is_stopping: bool,
    builders: Builders,
    #[cfg(feature = "dpdk")]
    devices: devices::Devices,
}

impl Watch {
    /// Serves the node until it ends.
    fn run(&mut self, signals: &Signals) -> io::Result<Ended> {
        loop {
            let mut ready =
                vec![PollFd::new(&signals.caught, PollFlags::IN), PollFd::new(&self.process, PollFlags::IN)];
            ready.extend(self.link.iter().map(|link| PollFd::new(link, PollFlags::IN)));
            self.builders.add_to(&mut ready);
            polled(&mut ready, None)?;
            let (is_told, has_ended) = (is_ready(&ready[0]), is_ready(&ready[1]));
            let is_asked = self.link.is_some() && is_ready(&ready[2]);
            drop(ready);
            if has_ended && let Some(ended) = self.process.try_wait()? {
                return Ok(ended);
            }
            if is_told {
                signals.take()?;
                self.is_stopping = true;
                self.process.signal(Signal::TERM);
            }
            if is_asked {
                self.answer();
            }
            self.builders.tend();
        }
    }

    fn answer(&mut self) {
        let Some(link) = &self.link else { return };
        match supervised::receive(link.as_fd()) {
            Ok(Some((Request::Opening, _))) => self.has_opened = true,
            Ok(Some((Request::Up, _))) => {
                self.is_up = true;
                // One that came while the node caught none yet was lost.
                if self.is_stopping {
                    self.process.signal(Signal::TERM);
                }
            }
            Ok(Some((Request::Build(arguments), descriptors))) => self.builders.start(arguments, descriptors),
            #[cfg(feature = "dpdk")]
            Ok(Some((Request::Sockets { port }, descriptors))) => self.devices.make_sockets(port, descriptors),
            #[cfg(feature = "dpdk")]
            Ok(Some((Request::Tap { port, flags, mac }, descriptors))) => {
                let wish = pinion_gateway::port::dpdk::remake::TapWish { flags, mac };
                self.devices.attach_tap(port, &wish, descriptors);
            }
            #[cfg(not(feature = "dpdk"))]
            Ok(Some((Request::Sockets { .. } | Request::Tap { .. }, _))) => {}
            Ok(None) => self.link = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                say(&format!("the node has sent what is no request, and gets no more builders and devices: {error}"));
                self.link = None;
            }
        }
    }
}

fn is_ready(polled: &PollFd<'_>) -> bool {
    !polled.revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_crashes_soon_again_is_started_later_each_time_and_one_that_ran_long_at_once() {
        let mut pauses = Pauses::default();
        let seconds: Vec<u64> = (0..9).map(|_| pauses.next(Duration::from_secs(3)).as_secs()).collect();
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.next(LONG_RUN), Duration::ZERO);
        assert_eq!(pauses.next(Duration::from_secs(3)), PAUSE);
    }
}
