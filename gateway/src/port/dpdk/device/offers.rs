//! How a burst is offered to a device that does not take all of it at once.
//!
//! A device takes as many frames as it likes from a burst's start. If it takes none, it may be full for now, or it may
//! never take the first: drivers on top of the kernel (`net_tap`, `net_pcap`) end a burst at a frame that the kernel
//! refuses. So a burst is offered several times. After that, the first remaining frame is dropped, one at a time, and
//! the rest is offered again. A device that refuses one frame loses only that frame, and a full device loses what it
//! would lose anyway.
//!
//! Neither allocates nor blocks. A burst of `n` frames is offered at most [`FRUITLESS_OFFERS_MAX`] plus `2 * n` times.

use std::ops::Range;

/// How often per burst a device may take nothing before each further such offer drops a frame.
pub(crate) const FRUITLESS_OFFERS_MAX: usize = 16;

/// What happened to a burst's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The device took them.
    pub(crate) sent: u64,
    /// They were dropped because the device had no room.
    pub(crate) full: u64,
    /// They were dropped, but the device took frames behind them, and in the same burst had refused a frame in
    /// [`FRUITLESS_OFFERS_MAX`] offers.
    pub(crate) refused: u64,
}

/// Offers `count` frames. `take` offers the frames of a range and returns how many of the first ones the device took.
/// `lose` drops a frame that it did not take.
pub(crate) fn offer(count: usize, mut take: impl FnMut(Range<usize>) -> usize, mut lose: impl FnMut(usize)) -> Outcome {
    let (mut outcome, mut at, mut patience) = (Outcome::default(), 0, FRUITLESS_OFFERS_MAX);
    // Offers in vain since the device last took something; frames dropped since then, and whether the first of these
    // had all offers.
    let (mut fruitless, mut lost, mut is_refused) = (0, 0, false);
    // Whether the device has shown in this burst that it refuses frames.
    let mut refuses = false;
    while at < count {
        let taken = take(at..count);
        debug_assert!(taken <= count - at, "a device took {taken} frames of {}", count - at);
        if taken > 0 {
            at += taken;
            outcome.sent += taken as u64;
            refuses |= is_refused;
            *(if refuses { &mut outcome.refused } else { &mut outcome.full }) += lost;
            (fruitless, lost, is_refused) = (0, 0, false);
            continue;
        }
        fruitless += 1;
        patience = patience.saturating_sub(1);
        if patience > 0 {
            std::hint::spin_loop();
            continue;
        }
        lose(at);
        is_refused |= lost == 0 && fruitless >= FRUITLESS_OFFERS_MAX;
        (at, lost) = (at + 1, lost + 1);
    }
    outcome.full += lost;
    outcome
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Offers a burst to a device. `device` returns how many frames it takes of an offer, given the offer's number and
    /// range. Returns the frames taken and lost, in order, the outcome, and the number of offers.
    fn offered(
        count: usize,
        device: impl Fn(usize, Range<usize>) -> usize,
    ) -> (Vec<usize>, Vec<usize>, Outcome, usize) {
        let (mut taken, mut lost, mut offers) = (Vec::new(), Vec::new(), 0);
        let take = |range: Range<usize>| {
            let some = device(offers, range.clone());
            offers += 1;
            taken.extend(range.take(some));
            some
        };
        let outcome = offer(count, take, |at| lost.push(at));
        (taken, lost, outcome, offers)
    }

    /// A device that ends a burst at frames that it never takes.
    fn refusing(bad: &[usize]) -> impl Fn(usize, Range<usize>) -> usize {
        |_, range| range.take_while(|at| !bad.contains(at)).count()
    }

    #[test]
    fn a_device_that_takes_all_is_offered_a_burst_once() {
        let (taken, lost, outcome, offers) = offered(64, refusing(&[]));
        assert_eq!((taken.len(), lost.len(), offers), (64, 0, 1));
        assert_eq!(outcome, Outcome { sent: 64, ..Outcome::default() });
        assert_eq!(offered(0, refusing(&[])).2, Outcome::default());
    }

    #[test]
    fn a_frame_that_a_device_refuses_is_lost_alone_wherever_in_the_burst_it_is() {
        for bad in 0..63 {
            let (taken, lost, outcome, _) = offered(64, refusing(&[bad]));
            assert_eq!(lost, [bad]);
            assert!(taken.iter().copied().eq((0..64).filter(|at| *at != bad)), "{taken:?}");
            assert_eq!(outcome, Outcome { sent: 63, refused: 1, full: 0 });
        }
        // Without a frame behind it, a refused frame looks like a full device.
        assert_eq!(offered(64, refusing(&[63])).2, Outcome { sent: 63, refused: 0, full: 1 });
    }

    #[test]
    fn all_frames_that_a_device_refuses_are_lost_and_no_other() {
        let bad: Vec<usize> = (0..64).filter(|at| at % 3 == 0 || (20..40).contains(at)).collect();
        let (taken, lost, outcome, offers) = offered(64, refusing(&bad));
        assert_eq!(lost, bad);
        assert_eq!(taken.len() + lost.len(), 64);
        // Without a frame behind it, the last refused frame looks like a full device.
        assert_eq!(outcome, Outcome { sent: taken.len() as u64, refused: lost.len() as u64 - 1, full: 1 });
        assert!(offers <= FRUITLESS_OFFERS_MAX + 2 * 64, "{offers} offers");
        let next_to_each_other = offered(8, refusing(&[2, 3, 4])).2;
        assert_eq!(next_to_each_other, Outcome { sent: 5, refused: 3, full: 0 });
    }

    #[test]
    fn a_device_that_stays_full_is_offered_a_burst_a_bounded_number_of_times() {
        let (taken, lost, outcome, offers) = offered(64, |_, _| 0);
        assert_eq!((taken.len(), lost.len()), (0, 64));
        assert_eq!(outcome, Outcome { full: 64, ..Outcome::default() });
        assert_eq!(offers, FRUITLESS_OFFERS_MAX + 63);
        let (.., outcome, _) = offered(1, |_, _| 0);
        assert_eq!(outcome, Outcome { full: 1, ..Outcome::default() });
    }

    #[test]
    fn a_device_that_has_room_again_in_time_loses_nothing() {
        for pause in [1, 2, FRUITLESS_OFFERS_MAX - 1] {
            let (taken, lost, outcome, _) = offered(64, |offer, range| if offer < pause { 0 } else { range.len() });
            assert_eq!((taken.len(), lost.len()), (64, 0));
            assert_eq!(outcome, Outcome { sent: 64, ..Outcome::default() });
        }
        // A device that takes a frame at a time, and sometimes none.
        let (taken, ..) = offered(64, |offer, _| usize::from(offer % 5 != 0));
        assert!(taken.is_sorted() && taken.len() >= 60, "{taken:?}");
    }

    proptest! {
        #[test]
        fn whatever_a_device_does_each_frame_is_taken_or_lost_once_and_in_order(
            count in 0..=64_usize,
            choices in vec(prop_oneof![Just(0), 0..8_usize], 1..256),
        ) {
            let device = |offer: usize, range: Range<usize>| choices[offer % choices.len()].min(range.len());
            let (taken, lost, outcome, offers) = offered(count, device);
            prop_assert!(taken.is_sorted() && lost.is_sorted());
            let mut all: Vec<usize> = taken.iter().chain(&lost).copied().collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..count));
            prop_assert_eq!(outcome.sent, taken.len() as u64);
            prop_assert_eq!(outcome.full + outcome.refused, lost.len() as u64);
            prop_assert!(offers <= FRUITLESS_OFFERS_MAX + 2 * count);
        }
    }
}
