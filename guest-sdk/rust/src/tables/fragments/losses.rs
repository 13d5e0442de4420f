//! Why fragments are dropped, and how many.

use core::cell::Cell;

use crate::metrics::Counter;

/// Why [`Fragments`](super::Fragments) drops a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It overlaps another one, is beyond its datagram's end, or is a first one on which another decision was made.
    Overlap,
    /// No datagram can have it: it is empty, it ends beyond 65,535 bytes, or its length is no multiple of 8 and it is
    /// not the last.
    BadLength,
    /// Its datagram has more fragments than can be remembered: 128.
    TooMany,
    /// Its datagram has ended by one of the three reasons before.
    Ended,
    /// The function has refused its first one.
    Refused,
    /// It came twice before its first one.
    Repeated,
    /// Its first one has not come in time.
    NoFirst,
    /// It waited, and there was no room for it, or for one that came later.
    NoRoom,
}

const LOSSES: [(Loss, &str); 8] = [
    (Loss::Overlap, "overlap"),
    (Loss::BadLength, "bad-length"),
    (Loss::TooMany, "too-many"),
    (Loss::Ended, "ended"),
    (Loss::Refused, "refused"),
    (Loss::Repeated, "repeated"),
    (Loss::NoFirst, "no-first"),
    (Loss::NoRoom, "no-room"),
];

/// The metrics.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) held: Counter,
    dropped: [Counter; LOSSES.len()],
    /// For all reasons together: functions ask for that with each batch.
    total: Cell<u64>,
}

impl Counters {
    pub(super) fn new(prefix: &str) -> Self {
        let name = format!("{prefix}_fragments_dropped");
        let help = "Fragments that were dropped because of their datagram, by reason.";
        let held = format!("{prefix}_fragments_held");
        Self {
            held: Counter::new(&held, "Fragments that came before the first one of their datagram, and waited."),
            dropped: LOSSES.map(|(_, reason)| Counter::with_labels(&name, help, &[("reason", reason)])),
            total: Cell::new(0),
        }
    }

    pub(super) fn count(&self, loss: Loss) {
        self.dropped[loss as usize].increment();
        self.total.set(self.total.get() + 1);
    }

    pub(super) fn of(&self, loss: Loss) -> u64 {
        self.dropped[loss as usize].value()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.total.get()
    }
}

#[cfg(test)]
mod tests {
    use super::LOSSES;

    #[test]
    fn each_reason_has_the_place_of_its_number() {
        assert!(LOSSES.iter().enumerate().all(|(at, (loss, _))| *loss as usize == at));
    }
}
