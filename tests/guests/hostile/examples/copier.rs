//! Makes the MMA copy as much as it can: from its first packet on it sends all its slots, full, again and again. With the configuration
//! `drop` it drops what it gets, as the stage behind such a one.

use pinion_sdk::{Batch, Function, InitError, Slots, Way};

static FULL: [u8; 1900] = [0x5a; 1900];

struct Copier {
    sends: bool,
    /// The way of its first packet.
    way: Option<Way>,
}

impl Function for Copier {
    const OWN_SLOTS: u16 = 512;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { sends: config != b"drop", way: None })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            self.way.get_or_insert(packet.way());
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.sends.then_some(0)
    }

    fn expire(&mut self, slots: Slots<'_>) {
        while let Some(packet) = self.way.and_then(|way| slots.make(&FULL, way)) {
            packet.send();
        }
    }
}

pinion_sdk::export!(Copier, slots = 1024);
