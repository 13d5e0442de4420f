//! Forwards each frame with its source and destination MAC addresses swapped: the simplest packet function.

#![forbid(unsafe_code)]

use pinion_sdk::{Batch, Function, InitError};

/// The function. It has no state.
#[derive(Debug)]
pub struct MacSwap;

impl Function for MacSwap {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        if !config.is_empty() {
            return Err(InitError::new(format!("macswap has no configuration, but was given {} bytes", config.len())));
        }
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            let Some(addresses) = packet.data_mut().first_chunk_mut::<12>() else {
                continue; // too short for addresses; dropped
            };
            addresses.rotate_left(6);
            packet.send();
        }
    }
}

pinion_sdk::export!(MacSwap);
