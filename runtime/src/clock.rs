//! The time that guests, workers and roles go by.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pinion_mma::stopwatch::Stopwatch;
use pinion_mma::ways::Arrival;

/// The clock of the whole process. Guests are told its time, so that a guest's deadline is the worker's deadline without conversion.
static STOPWATCH: LazyLock<Stopwatch> = LazyLock::new(Stopwatch::start);

/// Returns a stopwatch that started with the process's clock.
#[must_use]
pub fn stopwatch() -> Stopwatch {
    STOPWATCH.clone()
}

/// Returns the time of the process's clock, in nanoseconds.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    STOPWATCH.elapsed_ns()
}

/// A point in time of the process's clock. Polling threads read it in each poll, so it has to be cheaper than the system's clock.
#[derive(Debug, Clone, Copy)]
pub struct TscInstant(u64);

impl TscInstant {
    /// Returns the time now.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        Self(now_ns())
    }

    /// Returns the time since then.
    #[inline]
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.0))
    }
}

/// What decides when a guest's clock shows its next step. Random and secret, because a guest that knew when steps begin could count what it
/// does until the next one, and so measure finer than in steps.
static STEP_OFFSETS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The process's clock as a tenant's guests see it: in steps, each shown late by a random part of a step. It never goes back, never runs
/// ahead, and is behind by less than two steps. Guests of all tenants with the same step see the same, so that it helps none to compare the
/// clocks of many instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GuestClock {
    step_ns: u64,
}

impl GuestClock {
    /// Returns a clock with steps of so many microseconds, at least one.
    pub(crate) const fn in_steps_of(step_us: u32) -> Self {
        assert!(step_us > 0, "a clock has a step");
        Self { step_ns: step_us as u64 * 1_000 }
    }

    /// Returns the length of a step.
    pub(crate) const fn step_ns(self) -> u64 {
        self.step_ns
    }

    /// Returns what it shows when the process's clock says `now_ns`.
    #[inline]
    pub(crate) fn at(self, now_ns: u64) -> u64 {
        self.span_at(now_ns).shown_ns
    }

    /// Returns the same, and other times at which it shows the same: at least half of them.
    #[inline]
    fn span_at(self, now_ns: u64) -> Span {
        let step = now_ns / self.step_ns;
        let (begins_ns, shown_from_ns) = (step * self.step_ns, self.shown_from_ns(step));
        if now_ns >= shown_from_ns {
            Span { from_ns: shown_from_ns, until_ns: begins_ns + self.step_ns, shown_ns: begins_ns }
        } else {
            Span { from_ns: begins_ns, until_ns: shown_from_ns, shown_ns: begins_ns - self.step_ns }
        }
    }

    /// Returns the first time of the process's clock at which it shows `time_ns` or later; the largest if there is none.
    #[inline]
    pub(crate) fn reaches(self, time_ns: u64) -> u64 {
        self.shown_from_ns(time_ns.div_ceil(self.step_ns))
    }

    /// Returns from when this step is shown.
    #[inline]
    fn shown_from_ns(self, step: u64) -> u64 {
        if step == 0 {
            return 0;
        }
        let offset_ns = STEP_OFFSETS.hash_one((self.step_ns, step)) % self.step_ns;
        step.saturating_mul(self.step_ns).saturating_add(offset_ns)
    }
}

/// Times of the process's clock at which a guest's clock shows the same.
#[derive(Debug, Clone, Copy)]
struct Span {
    from_ns: u64,
    until_ns: u64,
    shown_ns: u64,
}

/// What a thread's guests were shown last of the time at which a frame came.
#[derive(Debug, Clone, Copy)]
struct ShownArrival {
    clock: GuestClock,
    from_ns: u64,
    until_ns: u64,
    shown_us: u32,
}

thread_local! {
    /// Many frames come within one step of a clock, and of these only the first one takes a hash.
    static SHOWN: Cell<ShownArrival> =
        const { Cell::new(ShownArrival { clock: GuestClock { step_ns: 1 }, from_ns: 0, until_ns: 0, shown_us: 0 }) };
}

/// Returns what a guest with this clock is shown, at `now_ns`, of the time at which a frame came: the lowest bits of microseconds. It is what
/// the guest's clock showed at that time, so a frame tells a guest no time that its clock would not have told.
#[inline]
pub(crate) fn arrival_us(clock: GuestClock, arrived: Arrival, now_ns: u64) -> u32 {
    let came_ns = arrived.before(now_ns);
    let shown = SHOWN.get();
    if shown.clock == clock && (shown.from_ns..shown.until_ns).contains(&came_ns) {
        return shown.shown_us;
    }
    show(clock, came_ns)
}

#[inline(never)]
fn show(clock: GuestClock, came_ns: u64) -> u32 {
    let Span { from_ns, until_ns, shown_ns } = clock.span_at(came_ns);
    let shown_us = (shown_ns / 1_000) as u32;
    SHOWN.set(ShownArrival { clock, from_ns, until_ns, shown_us });
    shown_us
}

/// What separates the host's date from the process's clock, in nanoseconds. Reads both without a call of the kernel. Between the two readings
/// the kernel may take the core, so the closest of a few pairs counts.
fn date_offset_ns() -> i64 {
    const PAIRS: u32 = 4;
    const CLOSE_NS: u64 = 1_000;
    let (mut closest_ns, mut offset_ns) = (u64::MAX, 0);
    for _ in 0..PAIRS {
        let before_ns = now_ns();
        let date_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let apart_ns = now_ns().saturating_sub(before_ns);
        if apart_ns < closest_ns {
            (closest_ns, offset_ns) = (apart_ns, date_ns - (before_ns + apart_ns / 2) as i64);
        }
        if closest_ns <= CLOSE_NS {
            break;
        }
    }
    offset_ns
}

/// The date as one guest sees it: that of the host when the guest's clock began its present step, rounded down to whole steps. It changes
/// only when that clock does, so that the two together measure no finer than one. It is behind by less than three steps, and follows the
/// host's date when that is set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WallClock {
    /// What the guest's clock showed at the last reading, and the date that was read then; none before the first.
    shown: Option<(u64, u64)>,
}

impl WallClock {
    /// By how much the date may fall behind what was shown without being shown: a date that is slowed down does not go back, and one that is
    /// set does.
    const HELD_NS: u64 = 200_000;

    /// Returns the date, in nanoseconds since 1970 in UTC, when the process's clock says `now_ns`.
    pub(crate) fn at(&mut self, clock: GuestClock, now_ns: u64) -> u64 {
        self.with_offset(clock, now_ns, date_offset_ns)
    }

    fn with_offset(&mut self, clock: GuestClock, now_ns: u64, offset_ns: impl FnOnce() -> i64) -> u64 {
        let guest_ns = clock.at(now_ns);
        if let Some((_, date_ns)) = self.shown.filter(|(at_ns, _)| *at_ns == guest_ns) {
            return date_ns;
        }
        let step_ns = clock.step_ns();
        let date_ns = guest_ns.saturating_add_signed(offset_ns()) / step_ns * step_ns;
        let held_ns = Self::HELD_NS.max(2 * step_ns);
        let date_ns = match self.shown {
            Some((_, shown_ns)) if (date_ns..=date_ns.saturating_add(held_ns)).contains(&shown_ns) => shown_ns,
            _ => date_ns,
        };
        self.shown = Some((guest_ns, date_ns));
        date_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_guests_clock_never_goes_back_or_ahead_and_is_less_than_two_steps_behind(
            step_us in 1_u32..=10_000, now_ns in 0..u64::MAX / 2, later_ns in 0_u64..100_000_000,
        ) {
            let clock = GuestClock::in_steps_of(step_us);
            let shown_ns = clock.at(now_ns);
            prop_assert_eq!(shown_ns % clock.step_ns(), 0);
            prop_assert!(shown_ns <= now_ns && now_ns - shown_ns < 2 * clock.step_ns());
            prop_assert!(clock.at(now_ns + later_ns) >= shown_ns);
        }

        #[test]
        fn a_deadline_is_over_as_soon_as_the_guests_clock_shows_it_and_no_sooner(
            step_us in 1_u32..=10_000, deadline_ns in 0..u64::MAX / 2,
        ) {
            let clock = GuestClock::in_steps_of(step_us);
            let over_ns = clock.reaches(deadline_ns);
            prop_assert!(clock.at(over_ns) >= deadline_ns);
            prop_assert!(over_ns == 0 || clock.at(over_ns - 1) < deadline_ns);
        }
    }

    proptest! {
        #[test]
        fn a_frames_arrival_is_what_the_guests_clock_showed_then_whatever_was_shown_before(
            steps_us in proptest::collection::vec(1_u32..=300, 2), start_ns in 0..u64::MAX / 2,
            frames in proptest::collection::vec((0_usize..2, 0_u64..400_000, 0_u64..1_000_000), 1..100),
        ) {
            let mut now_ns = start_ns;
            for (clock, later_ns, age_ns) in frames {
                now_ns += later_ns;
                let clock = GuestClock::in_steps_of(steps_us[clock]);
                let came_ns = now_ns.saturating_sub(age_ns) >> 10 << 10;
                let expected_us = clock.at(came_ns) / 1_000;
                prop_assert_eq!(arrival_us(clock, Arrival::at(came_ns), now_ns), expected_us as u32);
            }
        }
    }

    #[test]
    fn no_frame_is_shown_later_than_the_guests_clock_shows_now() {
        let clock = GuestClock::in_steps_of(1);
        for ahead_ns in [0, 1 << 10, 1 << 20, 1 << 28] {
            let now_ns = 5_000_000_000;
            let shown_us = arrival_us(clock, Arrival::at(now_ns + ahead_ns), now_ns);
            assert!(u64::from(shown_us) * 1_000 <= clock.at(now_ns), "{ahead_ns} ns ahead");
        }
    }

    const DAY_NS: i64 = 86_400_000_000_000;

    proptest! {
        #[test]
        fn the_date_changes_only_with_the_guests_clock_and_is_less_than_three_steps_behind_the_hosts(
            step_us in 1_u32..=10_000, starts_ns in 0..1_u64 << 60, pauses_ns in prop::collection::vec(0_u64..300_000, 1..50),
        ) {
            let (clock, mut date) = (GuestClock::in_steps_of(step_us), WallClock::default());
            let (mut now_ns, mut last) = (starts_ns, None);
            for pause_ns in pauses_ns {
                now_ns += pause_ns;
                let shown_ns = date.with_offset(clock, now_ns, || 20_000 * DAY_NS + 12_345);
                let host_ns = now_ns + 20_000 * DAY_NS as u64 + 12_345;
                prop_assert_eq!(shown_ns % clock.step_ns(), 0);
                prop_assert!(shown_ns <= host_ns && host_ns - shown_ns < 3 * clock.step_ns());
                if let Some((guest_ns, before_ns)) = last.replace((clock.at(now_ns), shown_ns)) {
                    prop_assert_eq!(guest_ns == clock.at(now_ns), before_ns == shown_ns);
                    prop_assert!(shown_ns >= before_ns);
                }
            }
        }

        #[test]
        fn the_date_does_not_go_back_while_the_hosts_is_slowed_down(
            step_us in 1_u32..=1_000, slower_ns in 1_i64..400, start_ns in 0..1_u64 << 60,
        ) {
            let (clock, mut date) = (GuestClock::in_steps_of(step_us), WallClock::default());
            let dates = (0..200_i64).map(|reading| {
                let now_ns = start_ns + reading as u64 * 1_000;
                date.with_offset(clock, now_ns, || 20_000 * DAY_NS - reading * slower_ns)
            });
            prop_assert!(dates.collect::<Vec<_>>().is_sorted());
        }
    }

    #[test]
    fn the_date_follows_the_hosts_when_that_is_set_forwards_or_back() {
        let (clock, mut date) = (GuestClock::in_steps_of(100), WallClock::default());
        // At the end of a step, which is shown by then.
        let mut shown_ns = |now_ns: u64, offset_ns: i64| date.with_offset(clock, now_ns + 99_999, || offset_ns);
        let before_ns = shown_ns(1_000_000_000, 20_000 * DAY_NS);
        let later_ns = shown_ns(2_000_000_000, 20_001 * DAY_NS);
        assert_eq!(later_ns - before_ns, DAY_NS as u64 + 1_000_000_000);
        assert_eq!(shown_ns(3_000_000_000, 20_000 * DAY_NS) - before_ns, 2_000_000_000);
        assert_eq!(shown_ns(4_000_000_000, -DAY_NS), 0, "no date is before 1970");
    }

    #[test]
    fn the_date_is_that_of_the_system() {
        let before_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let shown_ns = WallClock::default().at(GuestClock::in_steps_of(100), now_ns());
        let after_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        // The reading itself is exact to the time between its two clocks.
        assert!((before_ns.saturating_sub(10_000_000)..=after_ns + 1_000_000).contains(&shown_ns), "{shown_ns}");
    }

    #[test]
    fn a_deadline_beyond_all_time_is_never_reached_and_one_before_it_at_once() {
        let clock = GuestClock::in_steps_of(100);
        assert_eq!(clock.reaches(u64::MAX), u64::MAX);
        assert_eq!(clock.reaches(0), 0);
    }

    #[test]
    fn steps_are_shown_at_times_that_no_guest_can_tell_from_earlier_ones() {
        let clock = GuestClock::in_steps_of(100);
        let offsets_ns = (1..=1_000).map(|step| clock.shown_from_ns(step) - step * clock.step_ns());
        let mut tenths = [0; 10];
        offsets_ns.for_each(|offset_ns| tenths[(offset_ns / 10_000) as usize] += 1);
        // Each is 100 on average, with a standard deviation of 10.
        assert!(tenths.iter().all(|count| (30..=170).contains(count)), "{tenths:?}");
    }
}
