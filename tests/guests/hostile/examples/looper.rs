//! Loops for ever on its first packet.

use pinion_sdk::{Batch, Function, InitError};

struct Looper;

impl Function for Looper {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, _batch: Batch<'_>) {
        loop {
            std::hint::spin_loop();
        }
    }
}

pinion_sdk::export!(Looper);
