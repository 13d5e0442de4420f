//! Sends something invalid on its first packet. Its configuration selects what:
//!
//! | configuration | what it sends                                                       |
//! |---------------|---------------------------------------------------------------------|
//! | `slot-range`  | the first slot after the pool's last                                |
//! | `not-owned`   | a slot that it was not granted                                      |
//! | `twice`       | its packet, and then the same slot again                            |
//! | `length`      | a frame that ends one byte after its slot                           |
//! | `length-wrap` | a frame whose end is small if computed in 16 bits                   |
//! | `way`         | a frame of its own making, by a way by which none has come          |
//! | `tail-jump`   | nothing, but claims to have sent more packets than the ring holds   |
//! | `tail-back`   | nothing, but takes one packet more back than it ever sent           |
//!
//! If it is not stopped for that, it sends all later packets back as they came.

#![cfg(target_family = "wasm")]

use core::cell::Cell;

use pinion_abi::{Descriptor, InitStatus, LogLevel, PORT_REPLY, WAYS_MAX};
use pinion_hostile_guests::raw::{self, OWN_SLOT, Pool, SLOT_COUNT, SLOT_SIZE};

type Misdeed = fn(&Pool, Descriptor);

const MISDEEDS: [(&[u8], Misdeed); 8] = [
    (b"slot-range", slot_range),
    (b"not-owned", not_owned),
    (b"twice", twice),
    (b"length", length),
    (b"length-wrap", length_wrap),
    (b"way", way),
    (b"tail-jump", |pool, _| pool.move_tail(u32::from(SLOT_COUNT) + 1)),
    (b"tail-back", |pool, _| pool.move_tail(u32::MAX)),
];

thread_local! {
    static CHOSEN: Cell<usize> = const { Cell::new(0) };
}

fn init() -> InitStatus {
    let mut buffer = [0; 64];
    let config = raw::config(&mut buffer).trim_ascii();
    match MISDEEDS.iter().position(|(name, _)| *name == config) {
        Some(position) => {
            CHOSEN.set(position);
            InitStatus::Ready
        }
        None => {
            raw::log(LogLevel::Error, b"wild_descriptor knows no such misdeed as its configuration names");
            InitStatus::ConfigRefused
        }
    }
}

fn run(pool: &Pool) {
    let first = next(pool);
    MISDEEDS[CHOSEN.get()].1(pool, first);
    loop {
        let packet = next(pool);
        pool.transmit(answer(packet));
    }
}

fn next(pool: &Pool) -> Descriptor {
    loop {
        match pool.receive() {
            Some(packet) => return packet,
            None => raw::wait(),
        };
    }
}

fn answer(packet: Descriptor) -> Descriptor {
    Descriptor { port: PORT_REPLY, ..packet }
}

fn slot_range(pool: &Pool, packet: Descriptor) {
    pool.transmit(Descriptor { slot: SLOT_COUNT, ..answer(packet) });
}

/// Answers all packets that have arrived, so that it owns no slot, and then also sends the slot after its last one.
fn not_owned(pool: &Pool, packet: Descriptor) {
    pool.transmit(answer(packet));
    let mut slots_seen = 1_u64 << OWN_SLOT | 1 << packet.slot;
    while let Some(other) = pool.receive() {
        pool.transmit(answer(other));
        slots_seen |= 1 << other.slot;
    }
    // If all others arrive in one batch, every slot was granted. The number is then out of range, which is also invalid.
    let slot = slots_seen.trailing_ones() as u16;
    pool.transmit(Descriptor { slot, ..answer(packet) });
}

fn twice(pool: &Pool, packet: Descriptor) {
    pool.transmit(answer(packet));
    pool.transmit(answer(packet));
}

fn length(pool: &Pool, packet: Descriptor) {
    pool.transmit(Descriptor { len: SLOT_SIZE - packet.offset + 1, ..answer(packet) });
}

fn length_wrap(pool: &Pool, packet: Descriptor) {
    pool.transmit(Descriptor { offset: u16::MAX, len: 100, ..answer(packet) });
}

fn way(pool: &Pool, packet: Descriptor) {
    pool.transmit(Descriptor { slot: OWN_SLOT, way: WAYS_MAX - 1, ..answer(packet) });
}

pinion_hostile_guests::export_raw!(init = init, run = run);
