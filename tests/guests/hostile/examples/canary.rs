//! Looks for a pattern in its fresh memory, and traps if it is there, as it must come from another instance. Writes the pattern over its
//! memory on its first packet, and answers.

#![cfg(target_family = "wasm")]

use core::cell::Cell;
use core::ops::Range;

use pinion_hostile_guests::{answer, memory};
use pinion_sdk::{Batch, Function, InitError, info};

const PATTERN: u64 = 0x5ca1_ab1e_0ddb_a11e;
const BALLAST_WORDS: usize = 128 * 1024;
const STEP_PAGES: usize = 16;
const GROWTH_STEPS_MAX: usize = 64;

thread_local! {
    /// Initial memory, as opposed to grown memory: an instance gets the two in different ways.
    static BALLAST: [Cell<u64>; BALLAST_WORDS] = const { [const { Cell::new(0) }; BALLAST_WORDS] };
}

struct Canary {
    sang: bool,
}

impl Function for Canary {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { sang: false })
    }

    fn start(&mut self) {
        assert_fresh(memory::all());
        info!("canary found its memory fresh");
    }

    fn handle(&mut self, batch: Batch<'_>) {
        if !self.sang {
            self.sang = true;
            sing();
        }
        batch.for_each(answer);
    }
}

fn sing() {
    for _ in 0..GROWTH_STEPS_MAX {
        let Some(grown) = memory::grow(STEP_PAGES) else { break };
        assert_fresh(grown.clone());
        memory::fill(grown, PATTERN);
    }
    BALLAST.with(|ballast| memory::fill(memory::range_of(ballast), PATTERN));
    info!("canary filled its memory up to {} pages", memory::all().end / memory::PAGE_BYTES);
}

fn assert_fresh(range: Range<usize>) {
    if let Some(address) = memory::find(range, PATTERN) {
        panic!("canary found another instance's pattern at {address:#x}");
    }
}

pinion_sdk::export!(Canary);
