//! Forwards each frame with its source and destination MAC addresses swapped: the simplest packet function.

#![forbid(unsafe_code)]

use pinion_sdk::headers::swap_macs;
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
            // One that is too short for addresses is dropped.
            if swap_macs(packet.data_mut()).is_ok() {
                packet.send();
            }
        }
    }
}

pinion_sdk::export!(MacSwap);
