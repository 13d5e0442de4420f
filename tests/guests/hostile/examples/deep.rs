//! Calls itself on its first packet, and each time again, until its stack has no room.

use std::hint::black_box;

use pinion_sdk::{Batch, Function, InitError};

struct Deep;

impl Function for Deep {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        black_box(descend(batch.len() as u64));
    }
}

/// Needs what the call returns, so that no call is a jump.
#[allow(unconditional_recursion)]
#[inline(never)]
fn descend(depth: u64) -> u64 {
    black_box(descend(black_box(depth + 1))) ^ depth
}

pinion_sdk::export!(Deep);
