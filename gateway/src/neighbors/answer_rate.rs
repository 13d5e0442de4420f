//! How often neighbours are answered: each station so many times a second, and all stations together.
//!
//! A station that asks too often loses its own answers. One that forges others' hardware addresses can use up what all
//! have together, so that a flood costs the gateway and the network a bounded number of answers. Stations share a fixed
//! number of places, by a keyed hash. Allocates nothing after it was made.

use std::hash::{BuildHasher, RandomState};

use smoltcp::wire::EthernetAddress;

/// Places for stations.
const PLACES: usize = 1024;
/// Enough for a router that asks for each of a port's addresses at once, every second.
pub(super) const OF_STATION: Rate = Rate { per_second: 1024, burst: 1024 };
pub(super) const OF_ALL: Rate = Rate { per_second: 16_384, burst: 4096 };

/// Answers, or questions, in a second, and at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) per_second: u64,
    pub(super) burst: u64,
}

/// What is left of a rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    left: u64,
    /// When it was last refilled.
    at_ns: u64,
}

impl Bucket {
    pub(super) fn full(rate: Rate) -> Self {
        Self { left: rate.burst, at_ns: 0 }
    }

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, rate: Rate, now_ns: u64) -> bool {
        self.refill(rate, now_ns);
        let is_in_rate = self.left > 0;
        self.left -= u64::from(is_in_rate);
        is_in_rate
    }

    fn refill(&mut self, rate: Rate, now_ns: u64) {
        let interval_ns = 1_000_000_000 / rate.per_second;
        let more = now_ns.saturating_sub(self.at_ns) / interval_ns;
        self.at_ns = self.at_ns.saturating_add(more.saturating_mul(interval_ns));
        self.left = self.left.saturating_add(more).min(rate.burst);
    }
}

/// The rates of one port; see the module.
#[derive(Debug)]
pub(crate) struct AnswerRate {
    hasher: RandomState,
    stations: Box<[Bucket]>,
    all: Bucket,
}

impl AnswerRate {
    pub(crate) fn new() -> Self {
        let stations = vec![Bucket::full(OF_STATION); PLACES].into();
        Self { hasher: RandomState::new(), stations, all: Bucket::full(OF_ALL) }
    }

    /// Returns whether a station may be answered now, and counts the answer if it may.
    pub(crate) fn take(&mut self, station: EthernetAddress, now_ns: u64) -> bool {
        let place = self.hasher.hash_one(station) as usize % PLACES;
        let of_station = &mut self.stations[place];
        of_station.refill(OF_STATION, now_ns);
        self.all.refill(OF_ALL, now_ns);
        let is_in_rate = of_station.left > 0 && self.all.left > 0;
        if is_in_rate {
            (of_station.left, self.all.left) = (of_station.left - 1, self.all.left - 1);
        }
        is_in_rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn station(number: u32) -> EthernetAddress {
        let [a, b, c, d] = number.to_be_bytes();
        EthernetAddress([0x02, 0, a, b, c, d])
    }

    /// Returns how many of so many requests of these stations, in turn, are answered at this time.
    fn answered(rate: &mut AnswerRate, requests: u32, stations: u32, now_ns: u64) -> u64 {
        (0..requests).filter(|request| rate.take(station(request % stations), now_ns)).count() as u64
    }

    #[test]
    fn a_station_is_answered_at_its_rate() {
        let mut rate = AnswerRate::new();
        assert_eq!(answered(&mut rate, 5_000, 1, 0), OF_STATION.burst);
        assert_eq!(answered(&mut rate, 5_000, 1, SECOND_NS / 4), OF_STATION.per_second / 4);
        assert_eq!(answered(&mut rate, 5_000, 1, 3_600 * SECOND_NS), OF_STATION.burst);
    }

    #[test]
    fn requests_a_nanosecond_apart_add_up_to_the_rate_too() {
        let mut rate = AnswerRate::new();
        answered(&mut rate, 5_000, 1, 0);
        let interval_ns = SECOND_NS / OF_STATION.per_second;
        let later = (1..=2 * interval_ns).step_by(1000).filter(|now_ns| rate.take(station(0), *now_ns)).count();
        assert_eq!(later, 1);
    }

    #[test]
    fn a_station_that_asks_too_often_costs_another_no_answer() {
        let mut rate = AnswerRate::new();
        answered(&mut rate, 5_000, 1, 0);
        let others = (1..100).filter(|number| rate.take(station(*number), 0)).count();
        // One of them may have the same place.
        assert!(others >= 97, "{others}");
    }

    #[test]
    fn forged_stations_get_no_more_answers_than_all_together_may_have() {
        let mut rate = AnswerRate::new();
        assert_eq!(answered(&mut rate, 100_000, 100_000, 0), OF_ALL.burst);
        let of_a_tenth = answered(&mut rate, 100_000, 100_000, SECOND_NS / 10);
        assert!((OF_ALL.per_second / 10..=OF_ALL.per_second / 10 + 1).contains(&of_a_tenth), "{of_a_tenth}");
    }

    #[test]
    fn a_clock_that_goes_back_gives_no_answers() {
        let mut rate = AnswerRate::new();
        answered(&mut rate, 5_000, 1, SECOND_NS);
        assert!(!rate.take(station(0), 0));
    }
}
