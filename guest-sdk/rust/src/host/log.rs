//! Lines for the tenant's log: [`error!`](crate::error), [`warn!`](crate::warn), [`info!`](crate::info) and
//! [`debug!`](crate::debug).
//!
//! A line is formatted on the stack and cut at 1,024 bytes. The node limits how many lines it keeps and removes control characters. Even
//! so, log sparingly where each packet passes.
//!
//! [`set_max_level`] leaves out lines above a level. This crate's features `max-level-error`, `max-level-warn` and `max-level-info` also
//! remove them from the module. Without any of these all levels are logged.
//!
//! ```
//! let table_entries = 17;
//! pinion_sdk::info!("{table_entries} entries loaded");
//!
//! let log = pinion_sdk::testing::take_log();
//! assert_eq!(log, [(pinion_sdk::LogLevel::Info, "17 entries loaded".to_owned())]);
//! ```

use core::cell::Cell;
use core::fmt::{self, Write};

use pinion_abi::{LOG_LINE_BYTES_MAX, LogLevel};

use super::calls;

const LINE_BYTES_MAX: usize = LOG_LINE_BYTES_MAX as usize;

/// Logs a line; called by the macros.
pub fn write(level: LogLevel, text: fmt::Arguments<'_>) {
    line(text, |text| calls::log(level, text));
}

/// Passes a line on, cut to the longest length that the contract allows.
pub(crate) fn line(line: fmt::Arguments<'_>, take: impl FnOnce(&str)) {
    if let Some(text) = line.as_str() {
        return take(&text[..text.floor_char_boundary(LINE_BYTES_MAX)]);
    }
    let mut buffer = LineBuffer { bytes: [0; LINE_BYTES_MAX], len: 0 };
    // An error means that a value's own formatting failed; the part before it is still worth logging.
    let _ = buffer.write_fmt(line);
    take(buffer.as_str());
}

/// The highest level that is compiled in: the first enabled feature of `max-level-error`, `max-level-warn` and `max-level-info`.
const COMPILED_MAX: LogLevel = if cfg!(feature = "max-level-error") {
    LogLevel::Error
} else if cfg!(feature = "max-level-warn") {
    LogLevel::Warn
} else if cfg!(feature = "max-level-info") {
    LogLevel::Info
} else {
    LogLevel::Debug
};

thread_local! {
    static MAX: Cell<LogLevel> = const { Cell::new(LogLevel::Debug) };
}

/// Leaves out all lines above this level from now on. A call in [`Function::init`](crate::Function::init), by the configuration for
/// example, holds in every instance. A line that is left out costs one comparison: its arguments are not evaluated.
///
/// ```
/// use pinion_sdk::{LogLevel, debug, info, log, testing};
///
/// log::set_max_level(LogLevel::Info);
/// info!("ready");
/// debug!("{}", unreachable!("this is not evaluated") as u32);
/// assert_eq!(testing::take_log().len(), 1);
/// ```
pub fn set_max_level(level: LogLevel) {
    MAX.set(level);
}

/// Returns whether lines of this level are logged, so that a caller can skip expensive preparation of a line.
///
/// ```
/// use pinion_sdk::{LogLevel, log};
///
/// log::set_max_level(LogLevel::Warn);
/// assert!(log::is_on(LogLevel::Warn) && !log::is_on(LogLevel::Info));
/// ```
#[inline]
#[must_use]
pub fn is_on(level: LogLevel) -> bool {
    level as i32 <= COMPILED_MAX as i32 && level as i32 <= MAX.get() as i32
}

/// A buffer for the longest line; cuts between characters.
struct LineBuffer {
    bytes: [u8; LINE_BYTES_MAX],
    len: usize,
}

impl LineBuffer {
    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for LineBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let kept = text.floor_char_boundary(LINE_BYTES_MAX - self.len);
        self.bytes[self.len..self.len + kept].copy_from_slice(&text.as_bytes()[..kept]);
        self.len += kept;
        Ok(())
    }
}

/// Logs an error, which the tenant must act on.
///
/// ```
/// pinion_sdk::error!("no route for {}", "10.0.0.1");
/// ```
#[macro_export]
macro_rules! error {
    ($($line:tt)+) => {
        if $crate::log::is_on($crate::LogLevel::Error) {
            $crate::log::write($crate::LogLevel::Error, ::core::format_args!($($line)+));
        }
    };
}

/// Logs a warning, which the tenant should know about.
///
/// ```
/// pinion_sdk::warn!("table is {} % full", 90);
/// ```
#[macro_export]
macro_rules! warn {
    ($($line:tt)+) => {
        if $crate::log::is_on($crate::LogLevel::Warn) {
            $crate::log::write($crate::LogLevel::Warn, ::core::format_args!($($line)+));
        }
    };
}

/// Logs an event of normal operation.
///
/// ```
/// pinion_sdk::info!("ready");
/// ```
#[macro_export]
macro_rules! info {
    ($($line:tt)+) => {
        if $crate::log::is_on($crate::LogLevel::Info) {
            $crate::log::write($crate::LogLevel::Info, ::core::format_args!($($line)+));
        }
    };
}

/// Logs details that help to find a fault.
///
/// ```
/// pinion_sdk::debug!("dropped {} frames", 3);
/// ```
#[macro_export]
macro_rules! debug {
    ($($line:tt)+) => {
        if $crate::log::is_on($crate::LogLevel::Debug) {
            $crate::log::write($crate::LogLevel::Debug, ::core::format_args!($($line)+));
        }
    };
}

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use crate::LogLevel;
    use crate::testing::take_log;

    #[test]
    fn a_line_is_formatted_and_has_its_level() {
        crate::warn!("{} of {}", 1, "two");
        assert_eq!(take_log(), [(LogLevel::Warn, "1 of two".to_owned())]);
    }

    #[test]
    fn a_formatted_line_is_cut_between_characters() {
        crate::info!("{}{}", "a".repeat(1023), "é");
        assert_eq!(take_log(), [(LogLevel::Info, "a".repeat(1023))]);
    }

    #[test]
    fn nothing_follows_the_cut_but_what_fits() {
        crate::info!("{}{}", "é".repeat(600), "tail");
        assert_eq!(take_log(), [(LogLevel::Info, "é".repeat(512))]);
    }
}
