//! Makes the MMA copy as much as it can: from its first packet on it sends all its slots, full, again and again. With the configuration
//! `drop` it drops what it gets, as the stage behind such a one.

use pinion_sdk::{Batch, Function, InitError, Slots};

static FULL: [u8; 1900] = [0x5a; 1900];

struct Copier {
    sends: bool,
}

impl Function for Copier {
    const OWN_SLOTS: u16 = 512;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { sends: config != b"drop" })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        batch.for_each(drop);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.sends.then_some(0)
    }

    fn expire(&mut self, slots: Slots<'_>) {
        while let Some(packet) = slots.make(&FULL) {
            packet.send();
        }
    }
}

pinion_sdk::export!(Copier, slots = 1024);
