//! Initial sequence numbers by which the acknowledgement of a handshake proves itself: SYN cookies.
//!
//! Each number states what the peer's SYN offered, under a secret of the instance. So a handshake whose slot was given to another, as happens
//! during a flood of SYNs, is finished all the same when its acknowledgement comes: a SYN that is never acknowledged costs no client
//! anything. To open a connection from an address of which it sees no packets, a sender would have to try some 2^23 acknowledgements.
//!
//! ```text
//!   bit 31 .. 9   tag: a hash of the flow, the peer's number and the other fields, under the secret
//!   bit  8        period: which of two, of 64 s each
//!   bit  7 .. 5   size: the largest of SIZES that is no more than the peer's maximum segment size
//!   bit  4 .. 1   scale: of its window; 15 if it offered none
//!   bit  0        whether it offered selective acknowledgements
//! ```
//!
//! The lowest 9 bits are not sent as they are, but combined with another part of a hash, so that numbers of other flows say nothing about
//! this one's (RFC 6528).

use siphasher::sip::SipHasher13;
use smoltcp::wire::{TcpPacket, TcpRepr};

use super::link::Flow;
use super::sequence::{Arrived, options};
use crate::random;

/// Maximum segment sizes that are told apart.
const SIZES: [u16; 8] = [48, 536, 1000, 1220, 1300, 1380, 1440, 1460];
const PERIOD_NS: u64 = 64_000_000_000;
/// For how long a number proves something.
pub(super) const PROOF_NS_MAX: u64 = 2 * PERIOD_NS;
/// The period of the clock of RFC 6528.
const CLOCK_NS: u64 = 4_000;
const FIELD_BITS: u32 = 9;
const FIELDS: u32 = (1 << FIELD_BITS) - 1;
const NO_SCALE: u32 = 15;

/// What a SYN offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) segment_bytes: u16,
    pub(super) scale: Option<u8>,
    pub(super) selective: bool,
}

impl Offer {
    /// Returns the offer of a SYN.
    pub(super) fn of(syn: &TcpPacket<&[u8]>) -> Self {
        let options = options(syn);
        let of = |repr: &TcpRepr<'_>| Self {
            segment_bytes: repr.max_seg_size.unwrap_or(SIZES[1]),
            scale: repr.window_scale,
            selective: repr.sack_permitted,
        };
        options.as_ref().map_or(Self { segment_bytes: SIZES[1], scale: None, selective: false }, of)
    }

    fn to_bits(self) -> u32 {
        let size = SIZES.iter().rposition(|size| *size <= self.segment_bytes).unwrap_or(0) as u32;
        let scale = self.scale.map_or(NO_SCALE, |scale| u32::from(scale.min(14)));
        size << 5 | scale << 1 | u32::from(self.selective)
    }

    fn from_bits(bits: u32) -> Self {
        let scale = bits >> 1 & 15;
        Self {
            segment_bytes: SIZES[(bits >> 5 & 7) as usize],
            scale: (scale != NO_SCALE).then_some(scale as u8),
            selective: bits & 1 == 1,
        }
    }
}

/// The secret of an instance.
pub(super) struct Cookies {
    keyed: SipHasher13,
}

impl Cookies {
    /// One whose secret is known: [`Cookies::rekey`] is to be called in each instance.
    pub(super) fn new() -> Self {
        Self { keyed: SipHasher13::new() }
    }

    /// Draws a secret.
    pub(super) fn rekey(&mut self) {
        let mut key = [0; 16];
        random::fill(&mut key);
        self.keyed = SipHasher13::new_with_key(&key);
    }

    /// Returns the initial sequence number of the answer to a SYN with this number.
    pub(super) fn number(&self, flow: &Flow, peer_first: u32, offer: Offer, now_ns: u64) -> u32 {
        let period = now_ns / PERIOD_NS;
        let fields = (period as u32 & 1) << 8 | offer.to_bits();
        let hash = self.hash(flow, peer_first);
        self.tag(hash, period, fields) << FIELD_BITS | (fields ^ hash as u32 & FIELDS)
    }

    /// Returns the initial sequence number of a connection that the function opens: a hash of its ends, and a clock of 4 us (RFC 6528).
    pub(super) fn first(&self, flow: &Flow, now_ns: u64) -> u32 {
        (self.keyed.hash(&flow.to_bytes()) as u32).wrapping_add((now_ns / CLOCK_NS) as u32)
    }

    /// Returns what the SYN offered which a segment's acknowledgement proves to have been answered within the last 64 s to 128 s.
    pub(super) fn proven(&self, flow: &Flow, arrived: &Arrived, now_ns: u64) -> Option<Offer> {
        let (peer_first, number) = (arrived.seq.wrapping_sub(1), arrived.ack.wrapping_sub(1));
        let now = now_ns / PERIOD_NS;
        let hash = self.hash(flow, peer_first);
        let fields = (number ^ hash as u32) & FIELDS;
        // The last period with that lowest bit.
        let period = if now & 1 == u64::from(fields >> 8) { now } else { now.checked_sub(1)? };
        let tag = self.tag(hash, period, fields);
        (tag == number >> FIELD_BITS).then(|| Offer::from_bits(fields))
    }

    /// Hashes what a handshake is known by. Its lowest bits hide the fields.
    fn hash(&self, flow: &Flow, peer_first: u32) -> u64 {
        let mut bytes = [0; 41];
        bytes[..37].copy_from_slice(&flow.to_bytes());
        bytes[37..].copy_from_slice(&peer_first.to_be_bytes());
        self.keyed.hash(&bytes)
    }

    fn tag(&self, hash: u64, period: u64, fields: u32) -> u32 {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        bytes[8..16].copy_from_slice(&period.to_le_bytes());
        bytes[16..].copy_from_slice(&fields.to_le_bytes());
        (self.keyed.hash(&bytes) >> (32 + FIELD_BITS)) as u32
    }
}

/// Returns a seed with which an interface of smoltcp gives its first connection this initial sequence number: it has no other way to be told
/// one. The number is the second that it draws, after an identification for IPv4, which it draws again while that is 0.
pub(super) fn seed_of(number: u32) -> u64 {
    // Of a state whose highest three bits are 0, the generator returns these 32.
    let states = (0..).map(|rest| u64::from(number) << 29 | rest);
    let draws_once = |before: &u64| {
        let drawn = (before >> (29 - (before >> 61))) as u32;
        (drawn ^ drawn >> 16) as u16 != 0
    };
    let before = states.map(state_before).find(draws_once);
    state_before(before.expect("one of 65,536 draws on average is 0"))
}

/// Returns the state of smoltcp's generator from which a step leads to this one.
fn state_before(state: u64) -> u64 {
    const FACTOR: u64 = 0xbb2e_fcec_3c39_611d;
    const SUMMAND: u64 = 0x7590_ef39;
    const INVERSE: u64 = {
        let (mut inverse, mut round) = (FACTOR, 0);
        // Each round doubles the number of right bits (Newton's method), of which there are three at first.
        while round < 5 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
            round += 1;
        }
        inverse
    };
    state.wrapping_sub(SUMMAND).wrapping_mul(INVERSE)
}
