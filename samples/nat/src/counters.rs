//! What is counted: packets that were translated, and why others were dropped.

use pinion_sdk::metrics::Counter;

use crate::mappings::Refusal;
use crate::translate::Untranslated;

/// Counts of packets that were not translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// No port or table entry was free for them.
    pub no_room: u64,
    /// They belong to no mapping.
    pub no_mapping: u64,
    /// They are ICMP errors that report on no packet of a mapping, or of a kind that hosts ignore.
    pub bad_errors: u64,
    /// They are fragments, and were dropped because of their datagram.
    pub fragments: u64,
    /// Their source does not belong to the side that they came from (RFC 3704).
    pub spoofed: u64,
    /// They are not IPv4, neither from inside nor for an outside address, or of another protocol.
    pub unsupported: u64,
}

/// The same as metrics, without the fragments, which the SDK's table of them counts.
#[derive(Debug)]
pub(crate) struct PacketCounters {
    pub(crate) translated: Counter,
    no_room: Counter,
    no_mapping: Counter,
    bad_errors: Counter,
    spoofed: Counter,
    unsupported: Counter,
}

impl PacketCounters {
    pub(crate) fn new() -> Self {
        let help = "Packets that were not translated, by reason.";
        let dropped = |reason| Counter::with_labels("nat_packets_dropped", help, &[("reason", reason)]);
        Self {
            translated: Counter::new("nat_packets_translated", "Packets that were sent on."),
            no_room: dropped("no-room"),
            no_mapping: dropped("no-mapping"),
            bad_errors: dropped("bad-error"),
            spoofed: dropped("spoofed"),
            unsupported: dropped("unsupported"),
        }
    }

    /// Counts a packet that is dropped.
    #[cold]
    pub(crate) fn count(&self, why: Untranslated) {
        let counter = match why {
            Untranslated::Refused(Refusal::NoConnection) | Untranslated::NoMapping => &self.no_mapping,
            Untranslated::Refused(_) => &self.no_room,
            Untranslated::BadError => &self.bad_errors,
            Untranslated::Spoofed => &self.spoofed,
            Untranslated::Unsupported => &self.unsupported,
        };
        counter.increment();
    }

    pub(crate) fn values(&self, fragments: u64) -> Counters {
        Counters {
            no_room: self.no_room.value(),
            no_mapping: self.no_mapping.value(),
            bad_errors: self.bad_errors.value(),
            fragments,
            spoofed: self.spoofed.value(),
            unsupported: self.unsupported.value(),
        }
    }
}
