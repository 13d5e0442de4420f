//! Packets that are not for a socket, while C has them: each is held, by the number of its slot, until C sends or drops it.
//!
//! C has the slot's bytes meanwhile, and Rust has no reference to them. C's records of these packets are in
//! `guest-sdk/c/src/net/frames.c`.

use std::cell::RefCell;

use pinion_abi::Descriptor;
use pinion_sdk::net::Sockets;
use pinion_sdk::{Held, Packet, SLOT_COUNT_DEFAULT, Slots, foreign};

thread_local! {
    /// The packet in each slot.
    static HELD: RefCell<[Option<Held>; SLOT_COUNT_DEFAULT]> = const { RefCell::new([const { None }; SLOT_COUNT_DEFAULT]) };
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Send(u16),
    Reply,
    Drop,
    /// As `Sockets::refuse`.
    Refuse,
}

/// A packet as C left it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) slot: u16,
    pub(crate) offset: u16,
    pub(crate) len: u16,
    pub(crate) flags: u16,
}

/// Keeps a packet for C. Returns where it lies, and the first byte of its slot.
pub(crate) fn lend(mut packet: Packet<'_>) -> (Descriptor, *mut u8) {
    let bytes = foreign::slot_of(&mut packet).as_mut_ptr();
    let held = packet.hold();
    let descriptor = foreign::descriptor_of(&held);
    HELD.with_borrow_mut(|all| all[usize::from(descriptor.slot)] = Some(held));
    (descriptor, bytes)
}

/// Takes a packet back from C. Returns false if C has none in this slot, or has moved its ends out of the slot.
pub(crate) fn take_back(given: Given, verdict: Verdict, sockets: &Sockets<'_>) -> bool {
    let Some(packet) = taken(given, sockets.slots()) else { return false };
    match verdict {
        Verdict::Send(output) => packet.send_to(output),
        Verdict::Reply => packet.reply(),
        Verdict::Drop => packet.discard(),
        Verdict::Refuse => sockets.refuse(packet),
    }
    true
}

fn taken(given: Given, slots: Slots<'_>) -> Option<Packet<'_>> {
    let held = HELD.with_borrow_mut(|all| all.get_mut(usize::from(given.slot))?.take())?;
    foreign::take_up(slots, held, given.offset.into(), given.len.into(), given.flags).ok()
}

/// Makes an empty packet in one of the function's own slots, and keeps it for C. `None` if all of them are in use.
pub(crate) fn make(way: u32, slots: Slots<'_>) -> Option<(Descriptor, *mut u8)> {
    Some(lend(slots.make(&[], foreign::way_of(way))?))
}
