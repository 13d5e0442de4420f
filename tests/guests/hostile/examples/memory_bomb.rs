//! Allocates all the memory that it can get, and uses every page of it, on its first packet; then it answers as usual.

#![cfg(target_family = "wasm")]

use pinion_hostile_guests::{answer, memory};
use pinion_sdk::{Batch, Function, InitError, info};

const STEP_PAGES: usize = 16;

struct MemoryBomb {
    exploded: bool,
}

impl Function for MemoryBomb {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { exploded: false })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        if !self.exploded {
            self.exploded = true;
            explode();
        }
        batch.for_each(answer);
    }
}

fn explode() {
    for step_pages in [STEP_PAGES, 1] {
        while let Some(grown) = memory::grow(step_pages) {
            memory::fill(grown, 0x0b0b_0b0b_0b0b_0b0b);
        }
    }
    info!("memory refused at {} pages", memory::all().end / memory::PAGE_BYTES);
}

pinion_sdk::export!(MemoryBomb);
