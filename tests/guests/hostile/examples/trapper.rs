//! Panics on its first packet.

use pinion_sdk::{Batch, Function, InitError};

struct Trapper;

impl Function for Trapper {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        panic!("trapper does not like its {} packets", batch.len());
    }
}

pinion_sdk::export!(Trapper);
