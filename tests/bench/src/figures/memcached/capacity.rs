//! The most requests a second that a server answers.

use std::time::Duration;

use crate::figures::memcached::generator::{Generator, Offered};

/// More than this part of all requests lost is too much.
pub(crate) const LOSS_MAX: f64 = 0.001;
/// The first rate that is tried, in requests a second.
const FIRST: u64 = 10_000;
/// Higher rates are not tried.
const HIGHEST: u64 = 20_000_000;
/// A rate that fails is tried this often, as the machine may take a core away for longer than any queue lasts.
const TRIES: u32 = 3;
/// How often the distance of the highest rate that holds from the lowest that fails is halved.
const HALVINGS: u32 = 5;

/// Finds the highest rate of which no more than [`LOSS_MAX`] is lost, within 3 %: doubles the rate until it fails, then goes between.
///
/// # Errors
/// The generator itself fails, or the reply to a request is wrong.
pub(crate) fn search(generator: &mut Generator<'_>, trial: Duration) -> anyhow::Result<u64> {
    highest(|per_second| {
        for _ in 0..TRIES {
            let offered = generator.offer(per_second, trial)?;
            check(&offered)?;
            if offered.loss() <= LOSS_MAX {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Fails if a reply was wrong.
pub(crate) fn check(offered: &Offered) -> anyhow::Result<()> {
    anyhow::ensure!(offered.wrong == 0, "{} of {} replies were wrong", offered.wrong, offered.answered + offered.wrong);
    Ok(())
}

/// Finds the highest rate that holds; 0 if not even the first does.
fn highest(mut holds: impl FnMut(u64) -> anyhow::Result<bool>) -> anyhow::Result<u64> {
    let (mut good, mut bad) = (0, FIRST);
    while holds(bad)? {
        good = bad;
        bad *= 2;
        if bad > HIGHEST {
            return Ok(good);
        }
    }
    for _ in 0..HALVINGS {
        let between = u64::midpoint(good, bad);
        match holds(between)? {
            true => good = between,
            false => bad = between,
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_rate_is_found_within_three_percent() {
        for limit in [10_000, 123_456, 1_000_000, 7_654_321] {
            let found = highest(|rate| Ok(rate <= limit)).unwrap();
            assert!(found <= limit && found as f64 >= 0.96 * limit as f64, "{found} of {limit}");
        }
        assert!(highest(|_| Ok(true)).unwrap() > HIGHEST / 2);
        assert!(highest(|rate| Ok(rate < 5_000)).unwrap() < 5_000);
    }
}
