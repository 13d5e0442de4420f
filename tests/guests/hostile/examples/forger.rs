//! Answers each message as if it were the answer to another call: that of the number that its payload says. `silent` is not answered.

use pinion_sdk::{Batch, Function, InitError};

/// Where a message has its call's number, and where its payload begins.
const CALL_AT: usize = 24;
const PAYLOAD_AT: usize = 32;

struct Forger;

impl Function for Forger {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            let number = packet.data().get(PAYLOAD_AT..).and_then(|text| core::str::from_utf8(text).ok()?.parse().ok());
            if let Some(number) = number {
                packet.data_mut()[CALL_AT..CALL_AT + 4].copy_from_slice(&u32::to_le_bytes(number));
                packet.reply();
            }
        }
    }
}

pinion_sdk::export!(Forger);
