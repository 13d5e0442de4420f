//! Sends each packet back cut to a length below that of any Ethernet frame, from 1 byte to 13, one more for each packet.

use pinion_sdk::{Batch, Function, InitError};

/// An Ethernet header is longer.
const LEN_MAX: usize = 13;

struct Cutter {
    len: usize,
}

impl Function for Cutter {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { len: 0 })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            self.len = self.len % LEN_MAX + 1;
            packet.set_len(self.len).expect("it was longer");
            packet.reply();
        }
    }
}

pinion_sdk::export!(Cutter);
