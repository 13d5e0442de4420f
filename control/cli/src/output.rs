//! Terminal output: tables and descriptions like kubectl's, JSON, or YAML.
//!
//! Foreign text, such as why a tenant's function failed, is made printable by `pinion_text`. In JSON it stays
//! unchanged, and characters that control a terminal are escaped in JSON's way.

use std::io::{self, Write};

use comfy_table::{Cell, Table, presets};
use pinion_control::causes::with_causes;
use pinion_text::{SENTENCE_BYTES_MAX, TEXT_BYTES_MAX};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Prints values as indented JSON.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    print(&json_text(value, PrettyFormatter::new())?)
}

/// Prints a value as JSON on one line.
pub(crate) fn json_line(value: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    print(&json_text(value, CompactFormatter)?)
}

/// Prints a value as YAML. What YAML would not escape is printed as JSON, which is YAML too.
pub(crate) fn yaml(value: &impl Serialize) -> anyhow::Result<()> {
    write(&yaml_text(value)?)
}

fn yaml_text(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(value)?;
    if text.chars().all(|c| c == '\n' || pinion_text::is_printable(c)) {
        return Ok(text);
    }
    Ok(json_text(value, PrettyFormatter::new())? + "\n")
}

fn json_text(value: &(impl Serialize + ?Sized), formatter: impl Formatter) -> anyhow::Result<String> {
    let mut json = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut json, Escaping(formatter)))?;
    Ok(String::from_utf8(json)?)
}

/// Escapes unprintable characters in strings. JSON itself requires that for the first 32 characters only.
struct Escaping<F>(F);

impl<F: Formatter> Formatter for Escaping<F> {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(|c| !pinion_text::is_printable(c)) {
            self.0.write_string_fragment(writer, &rest[..at])?;
            let c = rest[at..].chars().next().unwrap_or_default();
            c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.0.write_string_fragment(writer, rest)
    }

    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

/// Prints text and a line feed.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Prints text unchanged.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    Ok(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())?)
}

/// Prints text and a line feed on standard error. An error here is ignored, as it could not be reported.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Formats columns under headings, without borders.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    columns(&headings, rows.into_iter().map(Vec::from))
}

/// The same where the number of columns is known when the program runs.
pub(crate) fn columns(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings);
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(|text| Cell::new(printable(&text)))));
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 3));
    });
    table.trim_fmt()
}

/// Formats `Key:   value` lines.
pub(crate) fn description<const N: usize>(lines: [(&str, String); N]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_rows(lines.into_iter().map(|(key, value)| [format!("{key}:"), printable_lines(&value)]));
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table.trim_fmt()
}

/// Returns the value as text, or a dash for none.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// Formats an age as `42s`, `3m12s`, `5h2m`, `3d4h`.
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

/// Formats a time in UTC as in RFC 3339: `2026-01-31T12:00:00.123Z`.
pub(crate) fn time_of_day(unix_ms: u64) -> String {
    // A node's clock may be at any time.
    let time = i64::try_from(unix_ms).ok().and_then(|unix_ms| jiff::Timestamp::from_millisecond(unix_ms).ok());
    time.map_or_else(|| format!("{unix_ms} ms after 1970"), |time| format!("{time:.3}"))
}

/// Formats a size as `512B`, `64.0KiB`, `1.1MiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{:.1}KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1}MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Formats a time as `900ns`, `1.2us`, `3.4ms`, `1.5s`.
pub(crate) fn time(time_ns: u64) -> String {
    let time = time_ns as f64;
    match time_ns {
        0..1_000 => format!("{time_ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", time / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", time / 1e6),
        _ => format!("{:.1}s", time / 1e9),
    }
}

/// Returns a text made printable, for a line or a cell of a table.
pub(crate) fn printable(text: &str) -> String {
    pinion_text::printable(text, SENTENCE_BYTES_MAX)
}

/// Returns a text of several lines, of which only the first can look like a line of this command's own.
pub(crate) fn indented(text: &str) -> String {
    pinion_text::indented(text, TEXT_BYTES_MAX)
}

/// Prints an error that ends the command as JSON on one line of standard error.
pub(crate) fn say_json(error: &impl Serialize) {
    match json_text(error, CompactFormatter) {
        Ok(text) => say(&text),
        Err(error) => say(&format!("error: {error}")),
    }
}

/// Formats an error that ends the command, or after which the command continues.
pub(crate) fn error(error: &anyhow::Error) -> String {
    format!("error: {}", indented(&with_causes(error.as_ref())))
}

fn printable_lines(text: &str) -> String {
    pinion_text::printable_lines(text, TEXT_BYTES_MAX)
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
    fn times_are_calendar_dates() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_799_999, "2024-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (u64::MAX, "18446744073709551615 ms after 1970"),
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
    fn no_output_can_control_a_terminal() {
        assert_eq!(printable("a\u{1b}[31mred\n\u{202e}"), "a\\u{1b}[31mred\\n\\u{202e}");
        assert_eq!(
            table(["A", "B"], [["\u{1b}[2J\nx".to_owned(), "y".to_owned()]]),
            "A              B\n\\u{1b}[2J\\nx   y"
        );
        let lines = [("Last failure", "it trapped\n\u{9b}2J".to_owned())];
        assert_eq!(description(lines), "Last failure:  it trapped\n               \\u{9b}2J");
    }

    #[test]
    fn yaml_has_the_same_content_as_json_and_cannot_control_a_terminal() {
        let plain = serde_json::json!({ "name": "echo", "of": [1, null, true, "7", "a: b", "two\nlines"], "none": {} });
        let text = yaml_text(&plain).unwrap();
        assert!(text.starts_with("name: echo\n"), "{text}");
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap(), plain, "{text}");
        for foreign in ["\u{1b}[2J", "\u{9b}2J", "\u{202e}forged", "a\rb", "\u{2028}"] {
            let value = serde_json::json!([foreign]);
            let text = yaml_text(&value).unwrap();
            assert!(text.chars().all(|c| c == '\n' || pinion_text::is_printable(c)), "{text:?}");
            assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap(), value, "{text}");
        }
    }

    #[test]
    fn an_error_has_one_line_that_begins_like_one() {
        let foreign = anyhow::anyhow!("refused\r\nerror: \u{1b}]0;forged\u{7}");
        assert_eq!(error(&foreign), "error: refused\\r\n    error: \\u{1b}]0;forged\\u{7}");
    }

    #[test]
    fn json_has_the_same_text_and_cannot_control_a_terminal() {
        let value = serde_json::json!({ "a\u{7f}": ["\u{9b}2J\u{202e}\u{2028}\n\t\"\\", "ä🦀", "\u{e0041}", ""], "n": 1, "none": {}, "of": [] });
        let line = json_text(&value, CompactFormatter).unwrap();
        assert_eq!(
            line,
            r#"{"a\u007f":["\u009b2J\u202e\u2028\n\t\"\\","ä🦀","\udb40\udc41",""],"n":1,"none":{},"of":[]}"#
        );
        let pretty = json_text(&value, PrettyFormatter::new()).unwrap();
        assert!(pretty.starts_with("{\n  \"a\\u007f\": [\n    \"\\u009b2J"), "{pretty}");
        for text in [line, pretty] {
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
