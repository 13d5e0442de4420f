//! How a thread of the data plane sleeps.
//!
//! * Where there is nothing but its doorbell it parks there: everybody who has work for it rings.
//! * With ports it sleeps in `poll(2)`, at an event file that its doorbell writes to and at what its ports' devices report
//!   frames by. Both are looked at before the kernel lets it sleep, so a frame that comes just then is not slept through.
//! * Without, it sleeps at what other threads' devices report frames by, to wake when they do ([`super::wakeup`]).
//! * A device that can't report frames (a ring, a memif, a card without interrupts) has to be looked at from time to time:
//!   the more rarely, the longer nothing has come. Its first frame after a pause waits for at most a sixteenth of that pause,
//!   and never for more than a millisecond; looking costs under two per cent of the core.
//! * However it sleeps, it wakes when the next deadline of its functions comes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_gateway::gateway::Gateway;
use pinion_gateway::port::Alarm;
use pinion_mma::doorbell::Doorbell;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Role;
use super::wakeup::{HadWork, Wakeup};

/// The longest sleep of a thread that everybody wakes.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// The same with ports: flows and instances that are no longer used are looked for, and links asked about, meanwhile.
const PORTS_SLEEP_MAX: Duration = Duration::from_millis(100);
/// The longest and the shortest sleep with a device that does not report frames, and the share of its pause in between.
const LOOK_SLEEP_MAX: Duration = Duration::from_millis(1);
const LOOK_SLEEP_MIN: Duration = Duration::from_micros(50);
const LOOK_SHARE: u32 = 16;

/// What is wrong with a file that ends each sleep at once.
const BROKEN: PollFlags = PollFlags::ERR.union(PollFlags::HUP).union(PollFlags::NVAL);

/// Where one thread sleeps.
pub(super) struct Sleeper {
    wakeup: Wakeup,
    /// What the doorbell writes to, if the thread sleeps at devices.
    rung: Option<Arc<OwnedFd>>,
    /// What ended the last sleep.
    found: Found,
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A ring or a device.
    Called,
    /// Its time was over, or there was no reason to sleep.
    ByItself,
}

/// What was found when a sleep ended.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    ring: bool,
    frame: bool,
    /// A device has something to say that is no frame.
    complaint: bool,
}

impl Found {
    fn woken(self) -> Woken {
        if self.ring || self.frame { Woken::Called } else { Woken::ByItself }
    }

    /// Whether the sleep was disturbed by a device that has no frames: the next is to go on without.
    fn is_disturbance(self) -> bool {
        self.complaint && !self.frame
    }
}

impl Sleeper {
    /// Makes the calling thread, which has these roles, the one that its bell wakes.
    pub(super) fn new(wakeup: Wakeup, roles: &[Role]) -> Self {
        let at_devices = gateways(roles).next().is_some() || !wakeup.followed().is_empty();
        let rung = if at_devices { event_file(&wakeup.bell) } else { None };
        if rung.is_none() {
            wakeup.bell.answer_here();
        }
        Self { wakeup, rung, found: Found::default() }
    }

    /// Sleeps until there is work for one of the roles, or it is time to look for it. Nobody had any for `idle_for`.
    pub(super) fn sleep(&mut self, roles: &mut [Role], idle_for: Duration, since_last: HadWork) -> Woken {
        if since_last == HadWork::Yes || self.found.woken() == Woken::Called {
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
            // Not when it ended the sleep: whoever is woken has better things to do. A ring that comes only now was for work
            // that is found below.
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

/// An event file that rings are written to; none if the process can't have it.
fn event_file(bell: &Doorbell) -> Option<Arc<OwnedFd>> {
    match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(event) => {
            let event = Arc::new(event);
            let written = Arc::clone(&event);
            // Fails only if it has been written to so often that it ends every sleep anyway.
            bell.answer_by(move || _ = rustix::io::write(&*written, &1_u64.to_ne_bytes()));
            Some(event)
        }
        Err(error) => {
            tracing::warn!("devices are looked at in steps, since there is no event file: {error}");
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

/// So long, or less if a function waits for a time before.
fn before_deadlines(roles: &[Role], longest: Duration) -> Duration {
    roles.iter().filter_map(Role::time_to_deadline).fold(longest, Duration::min)
}

/// How long to sleep before a device that does not report frames is looked at again.
fn look_sleep(idle_for: Duration) -> Duration {
    (idle_for / LOOK_SHARE).clamp(LOOK_SLEEP_MIN, LOOK_SLEEP_MAX)
}

pub(super) fn gateways(roles: &[Role]) -> impl Iterator<Item = &Gateway> {
    roles.iter().filter_map(|role| match role {
        Role::Gateway(gateway) => Some(&**gateway),
        Role::Mma(_) | Role::Worker(_) => None,
    })
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
    fn a_silent_device_is_looked_at_more_rarely_the_longer_it_is_silent() {
        let steps =
            [60, 800, 1_600, 8_000, 16_000, 1_000_000].map(|us| look_sleep(Duration::from_micros(us)).as_micros());
        assert_eq!(steps, [50, 50, 100, 500, 1_000, 1_000]);
    }
}
