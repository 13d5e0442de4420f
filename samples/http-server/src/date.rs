//! The date of responses (RFC 9110, section 6.6.1), made once a second.

use std::time::{SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

/// The first second of the year 10000, since 1970: no date in a field has five digits.
const YEARS_END_S: u64 = 253_402_300_800;
const SECOND_NS: u64 = 1_000_000_000;

/// A date as it stands in a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Date {
    /// The seconds since 1970.
    pub unix_s: u64,
    /// As in `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub text: String,
}

impl Date {
    /// Makes the date of a time; none of the first second of 1970, which stands for no time, and from the year 10000 on.
    #[must_use]
    pub fn of(unix_s: u64) -> Option<Self> {
        let time = UNIX_EPOCH + std::time::Duration::from_secs(Some(unix_s).filter(|unix_s| is_date(*unix_s))?);
        Some(Self { unix_s, text: HttpDate::from(time).to_string() })
    }
}

/// Returns the seconds since 1970 of a time that has a [`Date`].
#[must_use]
pub fn seconds_of(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs()).filter(|unix_s| is_date(*unix_s))
}

fn is_date(unix_s: u64) -> bool {
    (1..YEARS_END_S).contains(&unix_s)
}

/// The date now, kept for the rest of its second.
#[derive(Debug, Default)]
pub struct Calendar {
    date: Option<Date>,
    valid_until_ns: u64,
}

impl Calendar {
    /// Returns the date at this time of the node's clock, or none if the node has no date.
    pub fn today(&mut self, now_ns: u64) -> Option<&Date> {
        if now_ns >= self.valid_until_ns {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.date = Date::of(since.as_secs());
            self.valid_until_ns = now_ns + SECOND_NS - u64::from(since.subsec_nanos());
        }
        self.date.as_ref()
    }
}
