//! Hashes as many blocks of SHA-512 as its configuration says with each packet, and sends the packet back: work of a known amount.

use std::hint::black_box;

use pinion_sdk::{Batch, Function, InitError};
use sha2::{Digest, Sha512};

/// A block of 128 bytes.
const BLOCK: [u8; 128] = [0x5a; 128];

struct Hasher {
    blocks: u64,
}

impl Function for Hasher {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = std::str::from_utf8(config).map_err(|error| InitError::new(error.to_string()))?;
        let blocks = text.parse().map_err(|error| InitError::new(format!("{text:?} blocks: {error}")))?;
        Ok(Self { blocks })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            let mut hash = Sha512::new();
            (0..self.blocks).for_each(|_| hash.update(black_box(&BLOCK)));
            black_box(hash.finalize());
            if let Some((addresses, _)) = packet.data_mut().split_at_mut_checked(12) {
                addresses.rotate_left(6);
                packet.send();
            }
        }
    }
}

pinion_sdk::export!(Hasher);
