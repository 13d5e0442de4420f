//! Makes foreign text safe for terminals, logs, statuses and messages.
//!
//! Modules, functions, archives, manifests, and the peer of a socket all bring text that is shown where people and
//! programs read lines. All such text goes through [`printable`]. Its result has no character that moves a cursor, ends
//! a line, changes the writing direction or is invisible. It has at most as many bytes as the caller states, and says
//! how many it left out. Applied to its own result, it returns that unchanged, so it does not matter how many layers
//! apply it.
//!
//! | in | out |
//! |---|---|
//! | letters, digits, punctuation, symbols, and the space | as they are, the backslash included |
//! | line feed, carriage return, tab | `\n`, `\r`, `\t` |
//! | other control and format characters, other spaces and line separators, unassigned, private-use and invisible characters | `\u{202e}` |
//! | combining marks without a letter before them, or more than four in a row | `\u{301}` |
//! | bytes that are not UTF-8 | `U+FFFD` |
//!
//! The standard library's tables decide which characters are visible, and `is_invisible` lists the few that these
//! tables count as letters.
#![forbid(unsafe_code)]

use std::fmt::Write;

/// The maximum length of a name within a sentence, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// The maximum length of a sentence or a line, in bytes.
pub const SENTENCE_BYTES_MAX: usize = 2048;
/// The maximum length of a text of several lines, such as an error with a backtrace, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// The smallest length limit.
const CUT_BYTES_MIN: usize = 64;
/// The maximum length of the note that says how much is missing.
const CUT_MARK_BYTES_MAX: usize = 44;
/// The maximum number of combining marks in a row: more would reach into the lines above and below.
const MARKS_MAX: usize = 4;
/// The indentation of lines after the first, so that no text can imitate a line of its own.
const INDENT: &str = "    ";

/// Returns the text made printable in one line, in at most `bytes_max` bytes (at least 64).
#[must_use]
pub fn printable(text: impl AsRef<[u8]>, bytes_max: usize) -> String {
    escape(text.as_ref(), bytes_max, Lines::One)
}

/// Like [`printable`] for a text of several lines: keeps line feeds, and escapes everything else.
#[must_use]
pub fn printable_lines(text: impl AsRef<[u8]>, bytes_max: usize) -> String {
    escape(text.as_ref(), bytes_max, Lines::Several)
}

/// Like [`printable_lines`], with all lines after the first indented, so that the text cannot be mistaken for lines of
/// another origin.
#[must_use]
pub fn indented(text: impl AsRef<[u8]>, bytes_max: usize) -> String {
    printable_lines(text, bytes_max).replace('\n', &format!("\n{INDENT}"))
}

/// Returns whether a character is visible, or is the space. Combining marks are visible.
#[must_use]
pub fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        '\0'..='\u{a0}' => false,
        _ => !is_invisible(c) && (is_mark(c) || is_shown(c)),
    }
}

/// Returns whether a character is invisible although the standard library counts it as a letter, mark or symbol. These
/// are the characters that Unicode lists as `Default_Ignorable_Code_Point`, except for unassigned ones and those of
/// category Cf, and the empty Braille pattern.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Returns whether the standard library shows a character as itself in every position.
fn is_shown(c: char) -> bool {
    c.escape_debug().eq([c])
}

/// Returns whether it is a combining mark: the standard library shows it as itself only if it does not come first.
fn is_mark(c: char) -> bool {
    !c.is_ascii() && !is_shown(c) && {
        let mut bytes = [b'a'; 5];
        let len = c.encode_utf8(&mut bytes[1..]).len();
        str::from_utf8(&bytes[..=len]).is_ok_and(|text| text.escape_debug().skip(1).eq([c]))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Lines {
    One,
    Several,
}

fn escape(text: &[u8], bytes_max: usize, lines: Lines) -> String {
    let bytes_max = bytes_max.max(CUT_BYTES_MIN);
    let mut out = String::with_capacity(text.len().min(bytes_max));
    // Where to cut the text if it is too long: the offset in the result, and in the input.
    let (mut cut_at, mut cut_from, mut read) = (0, 0, 0);
    let mut marks = MARKS_MAX;
    for chunk in text.utf8_chunks() {
        let invalid = (!chunk.invalid().is_empty()).then_some((char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
        for (c, len) in chunk.valid().chars().map(|c| (c, c.len_utf8())).chain(invalid) {
            push(&mut out, c, lines, &mut marks);
            read += len;
            if out.len() > bytes_max {
                out.truncate(cut_at);
                let _ = write!(out, "... ({} bytes left out)", text.len() - cut_from);
                return out;
            }
            if out.len() <= bytes_max - CUT_MARK_BYTES_MAX {
                (cut_at, cut_from) = (out.len(), read);
            }
        }
    }
    out
}

/// Appends a character. `marks` is the number of combining marks since the last other character. It starts at the
/// maximum in each line, where no character can carry a mark.
fn push(out: &mut String, c: char, lines: Lines, marks: &mut usize) {
    match c {
        '\n' if lines == Lines::Several => {
            *marks = MARKS_MAX;
            out.push('\n');
        }
        ' '..='~' => {
            *marks = 0;
            out.push(c);
        }
        '\n' | '\r' | '\t' => {
            *marks = 0;
            out.extend(c.escape_default());
        }
        _ if is_printable(c) && is_mark(c) => {
            *marks += 1;
            if *marks > MARKS_MAX { out.extend(c.escape_unicode()) } else { out.push(c) }
        }
        _ => {
            *marks = 0;
            if is_printable(c) { out.push(c) } else { out.extend(c.escape_unicode()) }
        }
    }
}

#[cfg(test)]
mod tests;
