//! Sends each packet by the output that its last byte names, without checking that the output exists. With few outputs, wrong input leads
//! to an invalid output.

use pinion_sdk::{Batch, Function, InitError};

struct Splitter;

impl Function for Splitter {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            if let Some(&output) = packet.data().last() {
                packet.send_to(u16::from(output));
            }
        }
    }
}

pinion_sdk::export!(Splitter);
