//! How a thread of the data plane sleeps.
//!
//! * Without ports it parks at its doorbell: everybody who has work for it rings.
//! * With ports it sleeps in `poll(2)`, at an event file that its doorbell writes to and at what its ports' devices report
//!   frames by. Both are looked at before the kernel lets it sleep, so a frame that comes just then is not slept through.
//! * A device that can't report frames (a ring, a memif, a card without interrupts) has to be looked at from time to time:
//!   the more rarely, the longer nothing has come. Its first frame after a pause waits for at most a sixteenth of that pause,
//!   and never for more than a millisecond; looking costs under two per cent of the core.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pinion_gateway::gateway::Gateway;
use pinion_gateway::port::Alarm;
use pinion_mma::doorbell::Doorbell;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Role;

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
    bell: Doorbell,
    /// What the doorbell writes to, if the thread has ports.
    rung: Option<Arc<OwnedFd>>,
    /// Whether the last sleep was ended by nothing but a device's complaint; such a device is looked at in steps.
    disturbed: bool,
}

impl Sleeper {
    /// Makes the calling thread, which has these roles, the one that `bell` wakes.
    pub(super) fn new(bell: &Doorbell, roles: &[Role]) -> Self {
        let sleeper = |rung| Self { bell: bell.clone(), rung, disturbed: false };
        if gateways(roles).next().is_some() {
            match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
                Ok(event) => {
                    let event = Arc::new(event);
                    let written = Arc::clone(&event);
                    // Fails only if it has been written to so often that it ends every sleep anyway.
                    bell.answer_by(move || _ = rustix::io::write(&*written, &1_u64.to_ne_bytes()));
                    return sleeper(Some(event));
                }
                Err(error) => tracing::warn!("devices are looked at in steps, since there is no event file: {error}"),
            }
        }
        bell.answer_here();
        sleeper(None)
    }

    /// Sleeps until there is work for one of the roles, or it is time to look for it. Nobody had any for `idle_for`.
    pub(super) fn sleep(&mut self, roles: &mut [Role], idle_for: Duration) {
        let has_ports = gateways(roles).next().is_some();
        match &self.rung {
            Some(rung) => self.disturbed = sleep_with_ports(&self.bell, rung, roles, idle_for, self.disturbed),
            None => {
                let timeout = if has_ports { look_sleep(idle_for) } else { SLEEP_MAX };
                self.bell.sleep(timeout, || roles.iter_mut().any(Role::has_work));
            }
        }
    }
}

/// Whether the sleep was disturbed by a device that has no frames.
fn sleep_with_ports(
    bell: &Doorbell,
    rung: &OwnedFd,
    roles: &mut [Role],
    idle_for: Duration,
    was_disturbed: bool,
) -> bool {
    let mut disturbed = false;
    let alarm = roles.iter_mut().filter_map(as_gateway_mut).map(Gateway::arm).min().unwrap_or(Alarm::Set);
    let timeout = if alarm == Alarm::Set && !was_disturbed { PORTS_SLEEP_MAX } else { look_sleep(idle_for) };
    bell.sleep_by(|| {
        if alarm == Alarm::Ringing || roles.iter_mut().any(Role::has_work) {
            return;
        }
        let descriptors = gateways(roles).flat_map(Gateway::descriptors).filter(|_| !was_disturbed);
        let watched = std::iter::once(rung.as_fd()).chain(descriptors);
        let mut polled: Vec<_> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as i64 };
        if !poll(&mut polled, Some(&timeout)).is_ok_and(|found| found > 0) {
            return;
        }
        if polled[0].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(rung, &mut [0_u8; 8]);
        }
        let devices = || polled[1..].iter().map(PollFd::revents);
        disturbed = devices().any(|found| found.intersects(BROKEN)) && !devices().any(|it| it.contains(PollFlags::IN));
    });
    roles.iter_mut().filter_map(as_gateway_mut).for_each(Gateway::disarm);
    disturbed
}

/// How long to sleep before a device that does not report frames is looked at again.
fn look_sleep(idle_for: Duration) -> Duration {
    (idle_for / LOOK_SHARE).clamp(LOOK_SLEEP_MIN, LOOK_SLEEP_MAX)
}

fn gateways(roles: &[Role]) -> impl Iterator<Item = &Gateway> {
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
