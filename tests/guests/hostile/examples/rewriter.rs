//! Rewrites what it has sent, while the MMA may be copying it: from its first packet on it sends all its slots, full of one byte, and writes
//! the one and then another byte over all that it has ever sent. With the configuration `check` it is the stage behind such a one: it traps
//! if a packet has any other byte, or changes while it is looked at.

#![cfg(target_family = "wasm")]
#![allow(unsafe_code)] // writes what it no longer owns

use core::hint::black_box;

use pinion_sdk::{Batch, Function, InitError, Slots, Way};

const BYTES: [u8; 2] = [0xa5, 0x5a];
const LEN: usize = 1_900;
const OWN_SLOTS: u16 = 64;
/// How often it writes over its slots before it gives the core back.
const ROUNDS: usize = 64;
const LOOKS: usize = 4;

struct Rewriter {
    checks: bool,
    /// The way of its first packet.
    way: Option<Way>,
    /// Where the slots are that it has sent.
    sent: Vec<*mut u8>,
}

impl Function for Rewriter {
    const OWN_SLOTS: u16 = OWN_SLOTS;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { checks: config == b"check", way: None, sent: Vec::with_capacity(OWN_SLOTS.into()) })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            self.way.get_or_insert(packet.way());
            if self.checks {
                check(packet.data());
            }
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        (!self.checks).then_some(0)
    }

    fn expire(&mut self, slots: Slots<'_>) {
        for round in 0..ROUNDS {
            for at in &self.sent {
                // SAFETY: none. The bytes are in this memory, and so it harms only what this function itself sees.
                unsafe { black_box(*at).write_bytes(BYTES[round % BYTES.len()], LEN) };
            }
        }
        while let Some(mut packet) = self.way.and_then(|way| slots.make(&[BYTES[0]; LEN], way)) {
            let at = packet.data_mut().as_mut_ptr();
            if !self.sent.contains(&at) {
                self.sent.push(at);
            }
            packet.send();
        }
    }
}

fn check(packet: &[u8]) {
    let sum = |packet: &[u8]| {
        packet.iter().fold(0_u64, |sum, byte| {
            assert!(BYTES.contains(byte), "a byte that was never sent: {byte:#x}");
            sum.rotate_left(1) ^ u64::from(*byte)
        })
    };
    let first = sum(packet);
    assert!((1..LOOKS).all(|_| sum(black_box(packet)) == first), "a packet changed after it had come");
}

pinion_sdk::export!(Rewriter, slots = 128);
