//! What a service can do besides reading and writing a connection: [`Sockets`].

use core::fmt;

use super::link::Segment;
use super::stack::refuse;
use crate::headers::Headers;
use crate::{Packet, Slots};

/// The function's means to send, for the duration of a call.
#[derive(Clone, Copy)]
pub struct Sockets<'a> {
    slots: Slots<'a>,
    /// The packet that the call is about, by its slot, if its headers are known.
    known: Option<(u16, &'a Headers)>,
}

impl<'a> Sockets<'a> {
    pub(super) fn new(slots: Slots<'a>) -> Self {
        Self { slots, known: None }
    }

    /// Makes the means for a call about a packet with these headers.
    pub(super) fn about(packet: &Packet<'_>, headers: &'a Headers, slots: Slots<'a>) -> Self {
        Self { slots, known: Some((packet.slot(), headers)) }
    }

    /// Returns access to the function's own slots and to the packets that it holds.
    #[must_use]
    pub fn slots(&self) -> Slots<'a> {
        self.slots
    }

    /// Refuses a packet that is not for a socket: a segment of TCP is answered with a reset, if that is required (RFC 9293, section 3.10.7.1).
    /// Any other packet is dropped.
    pub fn refuse(&self, packet: Packet<'_>) {
        match self.known {
            Some((slot, headers)) if slot == packet.slot() => self.refuse_with(&packet, headers),
            _ => Headers::of(packet.data()).into_iter().for_each(|headers| self.refuse_with(&packet, &headers)),
        }
        packet.discard();
    }

    fn refuse_with(&self, packet: &Packet<'_>, headers: &Headers) {
        if let Some(segment) = Segment::of(packet, headers) {
            refuse(&segment, self.slots);
        }
    }
}

impl fmt::Debug for Sockets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}
