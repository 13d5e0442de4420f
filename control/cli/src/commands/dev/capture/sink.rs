//! The output file: pcap with nanoseconds, in this machine's byte order.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use super::{BadInput, ETHERNET, FRAME_BYTES_MAX};

/// The magic number of that format.
const MAGIC: u32 = 0xa1b2_3c4d;
/// The version, 2.4, as two 16-bit numbers.
const VERSION: [u16; 2] = [2, 4];

/// The writer of frames.
pub(in super::super) struct Sink(BufWriter<Box<dyn Write + Send>>);

impl Sink {
    /// Creates the file, or a sink that discards everything.
    pub(in super::super) fn new(path: Option<&Path>) -> Result<Self, BadInput> {
        let Some(path) = path else { return Ok(Self(BufWriter::new(Box::new(io::sink())))) };
        let unwritable = |error| BadInput::Unreadable { path: path.to_owned(), error };
        let mut to = BufWriter::new(Box::new(File::create(path).map_err(unwritable)?) as Box<dyn Write + Send>);
        let written = to.write_all(&header());
        // Flushed at once, so that a full disk is reported before any frame has gone through.
        written.and_then(|()| to.flush()).map_err(unwritable)?;
        Ok(Self(to))
    }

    /// Adds a frame. Its time must be one that pcap can represent.
    pub(in super::super) fn write(&mut self, time: Duration, frame: &[u8]) -> Result<(), String> {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let numbers = [seconds, time.subsec_nanos(), len, len].map(u32::to_ne_bytes);
        let written = self.0.write_all(numbers.as_flattened()).and_then(|()| self.0.write_all(frame));
        written.map_err(|error| cannot_write(&error))
    }

    /// Flushes all written frames.
    pub(in super::super) fn finish(mut self) -> Result<(), String> {
        self.0.flush().map_err(|error| cannot_write(&error))
    }
}

/// Returns the file header.
fn header() -> Vec<u8> {
    let mut header = MAGIC.to_ne_bytes().to_vec();
    header.extend(VERSION.map(u16::to_ne_bytes).as_flattened());
    header.extend([0, 0, FRAME_BYTES_MAX, ETHERNET].map(u32::to_ne_bytes).as_flattened());
    header
}

fn cannot_write(error: &io::Error) -> String {
    format!("it cannot be written: {error}")
}
