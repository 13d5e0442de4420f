//! Faults of guests as text. It may contain a tenant's text, as long as a module and with any bytes in it, so it is made printable here.

use pinion_text::printable;
use wasmtime::{FrameInfo, WasmBacktrace};

/// Most frames of a backtrace, and the longest symbol and sentence, in bytes.
const FRAMES_MAX: usize = 32;
const SYMBOL_BYTES_MAX: usize = 128;
const CAUSE_BYTES_MAX: usize = 512;

/// A trap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trapped {
    /// What happened.
    pub message: String,
    /// The backtrace: a line per frame, with symbol names where the module has them.
    pub backtrace: String,
}

impl Trapped {
    /// Returns the trap that caused the error of a guest's call.
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
        .map_or_else(|| format!("function {}", frame.func_index()), |name| printable(name, SYMBOL_BYTES_MAX));
    match frame.module_offset() {
        Some(offset) => format!("{number:>4}: {offset:#8x} {symbol}"),
        None => format!("{number:>4}: {symbol}"),
    }
}

/// Returns the root cause of an error, without wasmtime's own rendering of the backtrace.
#[must_use]
pub fn cause(error: &wasmtime::Error) -> String {
    printable(error.root_cause().to_string(), CAUSE_BYTES_MAX)
}
