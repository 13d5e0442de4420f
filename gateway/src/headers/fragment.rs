//! What a fragment's IP headers say about it, and the checks that need no other fragment of its datagram.

use super::FlowKey;
use crate::drops::DropReason;

/// The longest packet that fragments may add up to, with its header in IPv4 and without it in IPv6.
const PACKET_MAX: usize = 65_535;
/// Where fragments may begin: at multiples of this.
const UNIT: usize = 8;

/// One fragment of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The datagram's flow if this is its first fragment. Otherwise the part of it that every fragment has, without
    /// ports and ICMP type.
    pub flow: FlowKey,
    /// What the fragments of one datagram share in addition to [`Fragment::flow`].
    pub identification: u32,
    /// Which part of the datagram it is.
    pub part: Part,
    /// The bytes of the datagram that it has.
    pub extent: Extent,
}

/// How much of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The fragment with the transport header.
    First,
    /// Any later fragment.
    Later,
}

/// Which bytes of a datagram's payload a fragment has: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first one.
    pub start: u16,
    /// The one after the last.
    pub end: u16,
    /// Whether the datagram ends there.
    pub is_last: bool,
}

impl Extent {
    /// Makes the extent of a fragment of `len` bytes. `header_len` bytes of headers count for the packet's length.
    ///
    /// # Errors
    /// Why no fragment can be like that.
    pub(super) fn new(start: u16, len: usize, is_last: bool, header_len: usize) -> Result<Self, DropReason> {
        if len == 0 || !is_last && !len.is_multiple_of(UNIT) {
            return Err(DropReason::FragmentLength);
        }
        let end = usize::from(start) + len;
        if end + header_len > PACKET_MAX {
            return Err(DropReason::FragmentTooFar);
        }
        Ok(Self { start, end: end as u16, is_last })
    }
}

/// Returns why a first fragment is dropped, instead of a whole packet that is dropped for `reason`.
pub(super) fn of_first(reason: DropReason) -> DropReason {
    if reason == DropReason::Truncated { DropReason::TinyFragment } else { reason }
}
