//! `poll_oneoff`: waits until one of some subscriptions is due. Libraries sleep by it.
//!
//! ```text
//!   subscription  0 user data   8 kind   16 clock      24 time   32 precision   40 flags
//!                                        16 descriptor
//!   event         0 user data   8 errno  10 kind       16 bytes  24 flags
//! ```
//!
//! Files and streams are always ready. So only clocks are waited for, and only if nothing else is due.

use wasmtime::Caller;

use super::super::{Host, has, read, write};
use super::{BADF, CLOCK_MONOTONIC, CLOCK_REALTIME, FAULT, INVAL, SUCCESS};
use crate::files::{FileError, FileKind, Files, Open, Status, Stream, Whence};

/// The most subscriptions of a call: reading and writing of each open file, and some clocks.
const SUBSCRIPTIONS_MAX: u32 = 256;
const SUBSCRIPTION_BYTES: u32 = 48;
const EVENT_BYTES: u32 = 32;

/// The longest time after which a guest that waits for a date looks at the date again: the host's clock may have been set.
const DATE_LOOK_NS: u64 = 1_000_000_000;
/// How many bytes a file or a stream takes in one call, as an event says it.
const WRITABLE_BYTES: u64 = 64 * 1024;

const KIND_CLOCK: u8 = 0;
const KIND_READ: u8 = 1;
const KIND_WRITE: u8 = 2;
/// The time is one of the clock's, and not one from now on.
const FLAG_ABSOLUTE: u16 = 1;
/// No more will ever come.
const EVENT_HANGUP: u16 = 1;

/// A call of `poll_oneoff` that is under way. Its subscriptions stay in guest memory.
#[derive(Debug)]
pub struct Poll {
    subscriptions: i32,
    events: i32,
    count: u32,
    /// Where the number of events goes.
    stored: i32,
    /// When the call began, by the guest's clock.
    began_ns: u64,
}

/// What a look at the subscriptions came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// The call is over, with this result.
    Done(i32),
    /// Nothing is due before `clock` says this time.
    Until {
        /// The time, in nanoseconds of the guest's monotonic clock.
        clock_ns: u64,
    },
}

/// A subscription, as far as it is not yet known to be due.
enum Due {
    Now(Event),
    At { clock_ns: u64 },
}

/// What an event says besides the user data of its subscription.
#[derive(Clone, Copy, Default)]
struct Event {
    errno: i32,
    bytes: u64,
    flags: u16,
}

impl Event {
    fn failed(errno: i32) -> Self {
        Self { errno, ..Self::default() }
    }
}

impl Poll {
    /// Begins a call with these arguments, which are its subscriptions, room for as many events, how many there are, and where the number of
    /// events goes.
    ///
    /// # Errors
    /// The result of the call, if it fails.
    pub fn begin<T: Host>(
        caller: &mut Caller<'_, T>,
        (subscriptions, events, count, stored): (i32, i32, i32, i32),
    ) -> Result<Self, i32> {
        let count = count as u32;
        if !(1..=SUBSCRIPTIONS_MAX).contains(&count) {
            return Err(INVAL);
        }
        let ranges = [(subscriptions, SUBSCRIPTION_BYTES * count), (events, EVENT_BYTES * count), (stored, 4)];
        if !ranges.into_iter().all(|(at, len)| has(caller, at, len.into())) {
            return Err(FAULT);
        }
        Ok(Self { subscriptions, events, count, stored, began_ns: caller.data().clock_ns() })
    }

    /// Returns what the call is to be charged with.
    #[must_use]
    pub fn cost_bytes(&self) -> u32 {
        (SUBSCRIPTION_BYTES + EVENT_BYTES) * self.count
    }

    /// Looks which subscriptions are due now, and writes an event for each. Bounded by the most subscriptions, 256.
    pub fn look<T: Host>(&self, caller: &mut Caller<'_, T>) -> Polled {
        let (mut events, mut next_ns) = (0, u64::MAX);
        for number in 0..self.count {
            let mut subscription = [0; SUBSCRIPTION_BYTES as usize];
            let at = self.subscriptions.wrapping_add((number * SUBSCRIPTION_BYTES) as i32);
            if read(caller, at, &mut subscription).is_none() {
                return Polled::Done(FAULT);
            }
            let kind = subscription[8];
            let due = match kind {
                KIND_CLOCK => self.clock(caller, &subscription),
                KIND_READ | KIND_WRITE => Due::Now(descriptor(caller, u32_at(&subscription, 16), kind)),
                _ => return Polled::Done(INVAL),
            };
            match due {
                Due::At { clock_ns } => next_ns = next_ns.min(clock_ns),
                Due::Now(Event { errno, bytes, flags }) => {
                    let mut event = [0; EVENT_BYTES as usize];
                    event[..8].copy_from_slice(&subscription[..8]);
                    event[8..10].copy_from_slice(&(errno as u16).to_le_bytes());
                    event[10] = kind;
                    event[16..24].copy_from_slice(&bytes.to_le_bytes());
                    event[24..26].copy_from_slice(&flags.to_le_bytes());
                    if write(caller, self.events.wrapping_add((events * EVENT_BYTES) as i32), &event).is_none() {
                        return Polled::Done(FAULT);
                    }
                    events += 1;
                }
            }
        }
        if events == 0 {
            return Polled::Until { clock_ns: next_ns };
        }
        Polled::Done(write(caller, self.stored, &events.to_le_bytes()).map_or(FAULT, |()| SUCCESS))
    }

    /// Looks at a subscription of a clock. A time from now on is the same on both clocks: it does not change if the date is set.
    fn clock<T: Host>(&self, caller: &mut Caller<'_, T>, subscription: &[u8; SUBSCRIPTION_BYTES as usize]) -> Due {
        let (clock, time_ns) = (u32_at(subscription, 16) as i32, u64_at(subscription, 24));
        let is_absolute = u16::from_le_bytes([subscription[40], subscription[41]]) & FLAG_ABSOLUTE != 0;
        let now_ns = caller.data().clock_ns();
        let due_ns = match (clock, is_absolute) {
            (CLOCK_REALTIME | CLOCK_MONOTONIC, false) => self.began_ns.saturating_add(time_ns),
            (CLOCK_MONOTONIC, true) => time_ns,
            (CLOCK_REALTIME, true) => {
                let left_ns = time_ns.saturating_sub(caller.data_mut().wall_clock_ns());
                now_ns.saturating_add(left_ns.min(DATE_LOOK_NS))
            }
            _ => return Due::Now(Event::failed(INVAL)),
        };
        if due_ns <= now_ns { Due::Now(Event::default()) } else { Due::At { clock_ns: due_ns } }
    }
}

/// Returns the event for a descriptor: it is ready, or reading or writing it would fail.
fn descriptor<T: Host>(caller: &mut Caller<'_, T>, fd: u32, kind: u8) -> Event {
    let ready = match caller.data_mut().files() {
        Some((files, _)) => of_file(files, fd, kind).map_err(FileError::number),
        None => match Stream::ALL.get(fd as usize) {
            Some(stream) => Ok(of_status(Status::of(*stream), kind)),
            None => Err(BADF),
        },
    };
    ready.unwrap_or_else(Event::failed)
}

fn of_file(files: &mut Files, fd: u32, kind: u8) -> Result<Event, FileError> {
    let status = files.status(fd)?;
    let event = of_status(status, kind);
    if kind == KIND_WRITE || event.errno != SUCCESS || status.open != Open::Node(FileKind::File) {
        return Ok(event);
    }
    let (len, at) = (files.stat(fd)?.map_or(0, |stat| stat.bytes), files.seek(fd, 0, Whence::Current)?);
    Ok(Event { bytes: len.saturating_sub(at), ..event })
}

fn of_status(Status { open, read, write, .. }: Status, kind: u8) -> Event {
    match (open, kind) {
        (Open::Node(FileKind::Directory), _) => Event::failed(FileError::IsDirectory.number()),
        (Open::Stream(Stream::Input), KIND_READ) => Event { flags: EVENT_HANGUP, ..Event::default() },
        (_, KIND_READ) if read => Event::default(),
        (_, KIND_WRITE) if write => Event { bytes: WRITABLE_BYTES, ..Event::default() },
        _ => Event::failed(BADF),
    }
}

fn u32_at(bytes: &[u8; SUBSCRIPTION_BYTES as usize], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; SUBSCRIPTION_BYTES as usize], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
