//! Sends each packet on twice: as it came, and before that a copy in one of its own slots.

use pinion_sdk::{Batch, Function, InitError};

struct Doubler;

impl Function for Doubler {
    const OWN_SLOTS: u16 = 8;

    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            if let Some(copy) = packet.try_clone() {
                copy.send();
            }
            packet.send();
        }
    }
}

pinion_sdk::export!(Doubler);
