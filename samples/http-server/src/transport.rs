//! What a connection is read from and written to: [`Transport`].

use std::io::{Read, Write};

use pinion_sdk::net::Stream;

/// A connection's bytes in both directions. No operation blocks: see [`Stream`].
pub trait Transport: Read + Write {
    /// Returns how many bytes a write accepts now.
    fn room(&mut self) -> usize;

    /// Returns how many bytes the connection's send buffer has room for. It is less than the buffer's size by what the client
    /// has not acknowledged.
    fn buffer_room(&mut self) -> usize;
}

impl Transport for Stream<'_> {
    fn room(&mut self) -> usize {
        Stream::room(self)
    }

    fn buffer_room(&mut self) -> usize {
        Stream::room(self)
    }
}
