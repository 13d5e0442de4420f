//! Numbers in the byte order of their writer.

use std::io::{self, Read};

/// A byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    /// Returns the byte order in which these bytes are `number`, if there is one.
    pub(super) fn of(bytes: [u8; 4], number: u32) -> Option<Self> {
        [Self::Little, Self::Big].into_iter().find(|order| order.u32(bytes) == number)
    }

    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(super) fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// Bytes that are read number by number. Each read returns none if too few bytes are left.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    order: Order,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], order: Order) -> Self {
        Self { bytes, order }
    }

    /// Returns all bytes that are left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        Some(self.order.u16(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(self.order.u32(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(self.order.u64(self.array()?))
    }

    /// Returns these 8 bytes as a number.
    pub(super) fn number(self, bytes: &[u8]) -> Option<u64> {
        Some(self.order.u64(bytes.try_into().ok()?))
    }
}

/// Reads this many bytes, or fewer at the end of the input. Allocates no more memory than it has read.
pub(super) fn up_to(reader: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(count as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
