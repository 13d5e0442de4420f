//! Faults of guests, as text: all of it may be a tenant's, as long as a module if nobody cuts it, and with whatever in it.

use wasmtime::{FrameInfo, WasmBacktrace};

/// Frames of a backtrace that are kept, and the longest symbol and sentence, in bytes.
const FRAMES_MAX: usize = 32;
const SYMBOL_BYTES_MAX: usize = 128;
const CAUSE_BYTES_MAX: usize = 512;

/// A trap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trapped {
    /// What happened.
    pub message: String,
    /// Where, a line per frame, with symbol names where the module has them.
    pub backtrace: String,
}

impl Trapped {
    /// The trap behind the error of a guest's call.
    #[must_use]
    pub fn of(error: &wasmtime::Error) -> Self {
        let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
        let lines: Vec<String> = frames.iter().take(FRAMES_MAX).enumerate().map(line).collect();
        Self { message: cause(error), backtrace: lines.join("\n") }
    }
}

fn line((number, frame): (usize, &FrameInfo)) -> String {
    let symbol = frame
        .func_name()
        .map_or_else(|| format!("function {}", frame.func_index()), |name| cut(name, SYMBOL_BYTES_MAX));
    match frame.module_offset() {
        Some(offset) => format!("{number:>4}: {offset:#8x} {symbol}"),
        None => format!("{number:>4}: {symbol}"),
    }
}

/// What is at the bottom of an error, without wasmtime's own rendering of the backtrace around it.
#[must_use]
pub fn cause(error: &wasmtime::Error) -> String {
    cut(&error.root_cause().to_string(), CAUSE_BYTES_MAX)
}

/// The start of a text, made fit for a log.
fn cut(text: &str, bytes_max: usize) -> String {
    escaped(&text.as_bytes()[..text.floor_char_boundary(bytes_max)])
}

/// Text from a tenant, made fit for a log: no control characters.
#[must_use]
pub fn escaped(text: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in String::from_utf8_lossy(text).chars() {
        if c.is_control() {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_text_is_cut_and_made_fit_for_a_log() {
        assert_eq!(cut("a\n\u{1b}[2J", 64), "a\\n\\u{1b}[2J");
        assert_eq!(cut(&"ä".repeat(100), 33), "ä".repeat(16));
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped(b"a\x1b[2J\nERROR forged\tb\xff"), "a\\u{1b}[2J\\nERROR forged\\tb\u{fffd}");
    }
}
