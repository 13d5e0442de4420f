//! How things look on a terminal: tables and descriptions as people know them from kubectl, or JSON.
//!
//! Text from elsewhere, such as why a tenant's function failed, is printed without control characters.

use std::io::{self, Write};

use comfy_table::{Cell, Table, presets};
use serde::Serialize;

/// Prints values as indented JSON.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Prints text and a line feed.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Prints text as it is.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// Columns under headings, without borders.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings);
    table.add_rows(rows.into_iter().map(|row| row.map(|text| Cell::new(printable(&text)))));
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 3));
    });
    table.trim_fmt()
}

/// `Key:   value`, one in a line.
pub(crate) fn description<const N: usize>(lines: [(&str, String); N]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_rows(lines.into_iter().map(|(key, value)| [format!("{key}:"), printable_lines(&value)]));
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table.trim_fmt()
}

/// What there is, or a dash.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// `42s`, `3m12s`, `5h2m`, `3d4h`.
pub(crate) fn age(age_ms: u64) -> String {
    let seconds = age_ms / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if days > 0 => format!("{days}d{}h", hours % 24),
        () if hours > 0 => format!("{hours}h{}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

/// A moment in UTC, as RFC 3339 has it: `2026-01-31T12:00:00.123Z`.
pub(crate) fn time_of_day(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // Days since the first of March of the year 0, so that leap days are the last of their years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// `512B`, `64.0KiB`, `1.1MiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{:.1}KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1}MiB", bytes as f64 / 1_048_576.0),
    }
}

/// `900ns`, `1.2us`, `3.4ms`, `1.5s`.
pub(crate) fn time(time_ns: u64) -> String {
    let time = time_ns as f64;
    match time_ns {
        0..1_000 => format!("{time_ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", time / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", time / 1e6),
        _ => format!("{:.1}s", time / 1e9),
    }
}

/// The text without what a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_plain_columns_and_no_trailing_spaces() {
        let rows = [["demo".to_owned(), "1".to_owned()], ["a-longer-name".to_owned(), "2".to_owned()]];
        assert_eq!(table(["TENANT", "N"], rows), "TENANT          N\ndemo            1\na-longer-name   2");
    }

    #[test]
    fn a_description_aligns_its_values() {
        let lines = [("Name", "echo".to_owned()), ("Stages", "1. a\n2. b".to_owned())];
        assert_eq!(description(lines), "Name:    echo\nStages:  1. a\n         2. b");
    }

    #[test]
    fn moments_are_dates_of_the_calendar() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_799_999, "2024-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time_of_day(unix_ms), text);
        }
    }

    #[test]
    fn ages_have_their_two_largest_units() {
        for (age_ms, text) in
            [(0, "0s"), (59_999, "59s"), (192_000, "3m12s"), (18_120_000, "5h2m"), (273_600_000, "3d4h")]
        {
            assert_eq!(age(age_ms), text);
        }
    }

    #[test]
    fn sizes_have_a_unit_that_fits() {
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (65536, "64.0KiB"), (1_153_434, "1.1MiB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn times_have_a_unit_that_fits() {
        for (time_ns, text) in
            [(0, "0ns"), (999, "999ns"), (1_240, "1.2us"), (3_400_000, "3.4ms"), (1_500_000_000, "1.5s")]
        {
            assert_eq!(time(time_ns), text);
        }
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(printable("a\u{1b}[31mred\n"), "a\u{fffd}[31mred\u{fffd}");
    }
}
