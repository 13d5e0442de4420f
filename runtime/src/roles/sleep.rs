//! How a data-plane thread sleeps.
//!
//! * A thread with only a doorbell parks there. Every thread that has work for it rings.
//! * A thread with ports sleeps in `poll(2)`, on an eventfd that its doorbell writes to and on the descriptors by which its ports' devices
//!   report frames. The kernel checks both before it lets the thread sleep, so a frame that comes just then is not missed.
//! * A thread without ports sleeps on the descriptors of other threads' devices, to wake together with these threads ([`super::wakeup`]).
//! * A device that cannot report frames (a ring, a memif, a card without interrupts) is polled from time to time: the more rarely, the
//!   longer nothing has come. Its first frame after a pause waits for at most a sixteenth of that pause, and never for more than a
//!   millisecond. This polling costs under two per cent of the core.
//! * In all cases the thread wakes for the next deadline of its functions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_gateway::gateway::Gateway;
use pinion_gateway::port::Alarm;
use pinion_mma::notify::doorbell::Doorbell;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Role;
use super::wakeup::{Wakeup, WokeForWork, gateways};

/// The longest sleep of a thread that is woken for all its work.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// The longest sleep of a thread with ports, which must expire unused flows and instances and poll the state of links.
const PORTS_SLEEP_MAX: Duration = Duration::from_millis(100);
/// The longest and the shortest sleep with a device that does not report frames. Between these, the sleep is one part in `LOOK_SHARE` of
/// the pause so far.
const LOOK_SLEEP_MAX: Duration = Duration::from_millis(1);
const LOOK_SLEEP_MIN: Duration = Duration::from_micros(50);
const LOOK_SHARE: u32 = 16;

/// Conditions of a descriptor that end each sleep at once.
const BROKEN: PollFlags = PollFlags::ERR.union(PollFlags::HUP).union(PollFlags::NVAL);

/// How one thread sleeps.
pub(super) struct Sleeper {
    wakeup: Wakeup,
    /// The eventfd that the doorbell writes to, if the thread sleeps on devices.
    rung: Option<Arc<OwnedFd>>,
    /// What ended the last sleep.
    found: Found,
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// The doorbell rang or a device reported a frame.
    Called,
    /// The timeout passed, or there was work before the sleep.
    ByItself,
}

/// What was found when a sleep ended.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    ring: bool,
    frame: bool,
    /// A device's descriptor reported an error instead of a frame.
    complaint: bool,
}

impl Found {
    fn woken(self) -> WakeReason {
        if self.ring || self.frame { WakeReason::Called } else { WakeReason::ByItself }
    }

    /// Returns whether a device without frames ended the sleep. The next sleep leaves the devices out.
    fn is_disturbance(self) -> bool {
        self.complaint && !self.frame
    }
}

impl Sleeper {
    /// Makes the calling thread, which has these roles, the one that its doorbell wakes.
    pub(super) fn new(wakeup: Wakeup, roles: &[Role]) -> Self {
        let at_devices = gateways(roles).next().is_some() || !wakeup.followed().is_empty();
        let rung = if at_devices { event_file(&wakeup.bell) } else { None };
        if rung.is_none() {
            wakeup.bell.answer_here();
        }
        Self { wakeup, rung, found: Found::default() }
    }

    /// Sleeps until there is work for one of the roles, or until it is time to poll for it. No role had work for `idle_for`.
    pub(super) fn sleep(&mut self, roles: &mut [Role], idle_for: Duration, since_last: WokeForWork) -> WakeReason {
        if since_last == WokeForWork::Yes || self.found.woken() == WakeReason::Called {
            self.wakeup.learn(since_last);
        }
        self.found = match &self.rung {
            Some(rung) => self.sleep_at_devices(rung, roles, idle_for),
            None => self.sleep_at_bell(roles, idle_for),
        };
        self.found.woken()
    }

    fn sleep_at_bell(&self, roles: &mut [Role], idle_for: Duration) -> Found {
        let has_ports = gateways(roles).next().is_some();
        let timeout = before_deadlines(roles, if has_ports { look_sleep(idle_for) } else { SLEEP_MAX });
        let start = Instant::now();
        self.wakeup.bell.sleep(timeout, || roles.iter_mut().any(Role::has_work));
        Found { ring: start.elapsed() < timeout, ..Found::default() }
    }

    fn sleep_at_devices(&self, rung: &OwnedFd, roles: &mut [Role], idle_for: Duration) -> Found {
        if self.found.ring {
            // The eventfd is reset here and not at the wake-up, where it would delay the work. A ring that comes only now is for work that
            // is found below.
            let _ = rustix::io::read(rung, &mut [0_u8; 8]);
        }
        let has_ports = gateways(roles).next().is_some();
        let alarm = roles.iter_mut().filter_map(as_gateway_mut).map(Gateway::arm).min().unwrap_or(Alarm::Set);
        let longest = match alarm {
            _ if !has_ports => SLEEP_MAX,
            Alarm::Set if !self.found.is_disturbance() => PORTS_SLEEP_MAX,
            _ => look_sleep(idle_for),
        };
        let timeout = before_deadlines(roles, longest);
        let mut found = Found::default();
        self.wakeup.bell.sleep_by(|| {
            if alarm != Alarm::Ringing && !roles.iter_mut().any(Role::has_work) {
                let followed = self.wakeup.followed().iter().map(AsFd::as_fd);
                let devices = gateways(roles).flat_map(Gateway::descriptors).chain(followed);
                found = wait(rung, devices.filter(|_| !self.found.is_disturbance()), timeout);
            }
        });
        if found.frame {
            self.wakeup.rouse_followers();
        }
        roles.iter_mut().filter_map(as_gateway_mut).for_each(Gateway::disarm);
        found
    }
}

/// Creates an eventfd that the doorbell writes to; none if the process cannot create one.
fn event_file(bell: &Doorbell) -> Option<Arc<OwnedFd>> {
    match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(event) => {
            let event = Arc::new(event);
            let written = Arc::clone(&event);
            // Fails only if the counter is at its maximum, when it ends every sleep anyway.
            bell.answer_by(move || _ = rustix::io::write(&*written, &1_u64.to_ne_bytes()));
            Some(event)
        }
        Err(error) => {
            tracing::warn!("no eventfd can be created, so idle devices are polled at intervals: {error}");
            None
        }
    }
}

fn wait<'a>(rung: &'a OwnedFd, devices: impl Iterator<Item = BorrowedFd<'a>>, timeout: Duration) -> Found {
    let watched = std::iter::once(rung.as_fd()).chain(devices);
    let mut polled: Vec<_> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as i64 };
    if !poll(&mut polled, Some(&timeout)).is_ok_and(|found| found > 0) {
        return Found::default();
    }
    let (bell, devices) = (polled[0].revents(), polled[1..].iter().map(PollFd::revents));
    let found = devices.fold(PollFlags::empty(), PollFlags::union);
    Found {
        ring: bell.contains(PollFlags::IN),
        frame: found.contains(PollFlags::IN),
        complaint: found.intersects(BROKEN),
    }
}

/// Returns `longest`, or less if a function has an earlier deadline.
fn before_deadlines(roles: &[Role], longest: Duration) -> Duration {
    roles.iter().filter_map(Role::time_to_deadline).fold(longest, Duration::min)
}

/// Returns how long to sleep before a device that does not report frames is polled again.
fn look_sleep(idle_for: Duration) -> Duration {
    (idle_for / LOOK_SHARE).clamp(LOOK_SLEEP_MIN, LOOK_SLEEP_MAX)
}

fn as_gateway_mut(role: &mut Role) -> Option<&mut Gateway> {
    match role {
        Role::Gateway(gateway) => Some(gateway),
        Role::Mma(_) | Role::Worker(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_device_is_polled_more_rarely_the_longer_it_is_silent() {
        let steps =
            [60, 800, 1_600, 8_000, 16_000, 1_000_000].map(|us| look_sleep(Duration::from_micros(us)).as_micros());
        assert_eq!(steps, [50, 50, 100, 500, 1_000, 1_000]);
    }
}
