//! The least pace at which a client must take what it has asked for: [`Pace`].

/// The time in which a client takes `PACE_BYTES`, or all that is ready for it if that is less.
pub const PACE_NS: u64 = 60_000_000_000;
/// See [`PACE_NS`]: a kibibyte a second.
pub(crate) const PACE_BYTES: u64 = 60 << 10;

/// What a client must have taken, and by when.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// In bytes since the connection was opened.
    goal: u64,
    /// `None` while nothing is ready for the client.
    until_ns: Option<u64>,
}

impl Pace {
    /// Records that the client has taken so many bytes in all; returns whether it is too slow.
    pub(crate) fn is_missed(&mut self, taken: u64, now_ns: u64) -> bool {
        if taken >= self.goal {
            self.until_ns = None;
        }
        self.until_ns.is_some_and(|until_ns| until_ns <= now_ns)
    }

    /// Records that so many bytes are ready for the client; returns by when it must have taken more of them.
    pub(crate) fn until_ns(&mut self, taken: u64, ready: u64, now_ns: u64) -> Option<u64> {
        if ready == 0 {
            self.until_ns = None;
        } else if self.until_ns.is_none() {
            self.goal = taken + ready.min(PACE_BYTES);
            self.until_ns = Some(now_ns + PACE_NS);
        }
        self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_must_take_a_kibibyte_a_second_or_all_there_is() {
        for (ready, taken, is_missed) in [
            (1, 0, true),
            (1, 1, false),
            (1_000, 999, true),
            (PACE_BYTES, PACE_BYTES - 1, true),
            (u64::MAX >> 1, PACE_BYTES - 1, true),
            (u64::MAX >> 1, PACE_BYTES, false),
        ] {
            let mut pace = Pace::default();
            assert_eq!(pace.until_ns(7, ready, 5), Some(5 + PACE_NS));
            assert!(!pace.is_missed(7, 4 + PACE_NS), "there is time left");
            assert_eq!(pace.is_missed(7 + taken, 5 + PACE_NS), is_missed, "{taken} of {ready}");
        }
    }

    #[test]
    fn more_that_gets_ready_moves_no_deadline_and_each_goal_reached_begins_another() {
        let mut pace = Pace::default();
        assert_eq!(pace.until_ns(0, 10, 0), Some(PACE_NS));
        assert_eq!(pace.until_ns(9, 1_000_000, 50), Some(PACE_NS), "it has not taken the ten");
        assert!(!pace.is_missed(10, 60));
        assert_eq!(pace.until_ns(10, 1_000_000, 60), Some(60 + PACE_NS));
        assert!(pace.is_missed(10, 60 + PACE_NS));
    }

    #[test]
    fn a_client_for_which_nothing_is_ready_is_not_slow() {
        let mut pace = Pace::default();
        assert!(!pace.is_missed(0, u64::MAX));
        assert_eq!(pace.until_ns(0, 10, 0), Some(PACE_NS));
        assert_eq!(pace.until_ns(10, 0, 1), None);
        assert!(!pace.is_missed(10, u64::MAX));
    }
}
