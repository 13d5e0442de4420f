//! The entries of the rings between a worker and the MMA: deliveries one way, transmissions the other. Each is packed into
//! 63 bits ([`crate::rings::phased`]).

use pinion_abi::{RX_REPLY, SLOT_COUNT_MAX};

use crate::id::SlotIndex;
use crate::rings::phased::Entry;
use crate::ways::{IngressInfo, Way};

/// A frame that the MMA has copied into a slot, which thereby becomes the guest's; or one of the guest's own slots that
/// comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Which slot. The frame starts [`pinion_abi::RX_HEADROOM`] bytes after the slot's start.
    pub slot: SlotIndex,
    /// Its length, in bytes; 0 for a slot that comes back.
    pub len: u16,
    /// How and when it came.
    pub came: IngressInfo,
    /// What the receiving device reported, and the frame's direction: bits as in a guest's descriptor.
    pub facts: u8,
}

/// A slot that the guest has given up, and where the frame in it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmission {
    /// Which slot; the guest owned it.
    pub slot: SlotIndex,
    /// Where in the slot the frame starts, in bytes.
    pub offset: u16,
    /// Its length, in bytes; with `offset`, within the slot.
    pub len: u16,
    /// The way of a frame in one of the guest's own slots: the mailbox has checked that a frame came by it. Of other
    /// slots the MMA's own record counts.
    pub way: Way,
    /// Where the frame goes.
    pub to: TxTarget,
}

/// Where a guest sends a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxTarget {
    /// To one of the stage's outputs; the mailbox has checked that it exists.
    Output(u8),
    /// Back towards the port on which it was received.
    Reply,
    /// Dropped.
    Drop,
}

/// What a delivery is packed into: 10 bits of a slot, 7 of flags, 30 of how the frame came, and 16 of its length.
const SLOT_BITS: u32 = 10;
const FACTS_BITS: u32 = 7;
const CAME_AT: u32 = SLOT_BITS + FACTS_BITS;
const LEN_AT: u32 = CAME_AT + IngressInfo::BITS;
const _: () = assert!(LEN_AT + u16::BITS == 63 && SLOT_COUNT_MAX == 1 << SLOT_BITS && RX_REPLY < 1 << FACTS_BITS);

impl Entry for Delivery {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        let Self { slot, len, came, facts } = self;
        u64::from(slot.0) | u64::from(facts) << SLOT_BITS | came.to_bits() << CAME_AT | u64::from(len) << LEN_AT
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Self {
            slot: SlotIndex(bits as u16 & ((1 << SLOT_BITS) - 1)),
            len: (bits >> LEN_AT) as u16,
            came: IngressInfo::from_bits(bits >> CAME_AT),
            facts: (bits >> SLOT_BITS) as u8 & ((1 << FACTS_BITS) - 1),
        }
    }
}

/// Above all numbers of outputs.
const OUTLET_REPLY: u8 = 128;
const OUTLET_DROP: u8 = 129;
/// Where a transmission's way and its target lie.
const WAY_AT: u32 = 48;
const OUTLET_AT: u32 = 55;

impl Entry for Transmission {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        let Self { slot, offset, len, way, to } = self;
        let to = match to {
            TxTarget::Output(number) => number,
            TxTarget::Reply => OUTLET_REPLY,
            TxTarget::Drop => OUTLET_DROP,
        };
        let place = u64::from(slot.0) | u64::from(offset) << 16 | u64::from(len) << 32;
        place | u64::from(way.number()) << WAY_AT | u64::from(to) << OUTLET_AT
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        let to = match (bits >> OUTLET_AT) as u8 {
            OUTLET_REPLY => TxTarget::Reply,
            OUTLET_DROP => TxTarget::Drop,
            number => TxTarget::Output(number),
        };
        let way = Way::of_number((bits >> WAY_AT) as u16);
        Self { slot: SlotIndex(bits as u16), offset: (bits >> 16) as u16, len: (bits >> 32) as u16, way, to }
    }
}
