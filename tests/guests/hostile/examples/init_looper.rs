//! Never finishes its initialisation.

use pinion_sdk::{Batch, Function, InitError};

struct InitLooper;

impl Function for InitLooper {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        loop {
            std::hint::spin_loop();
        }
    }

    fn handle(&mut self, _batch: Batch<'_>) {}
}

pinion_sdk::export!(InitLooper);
