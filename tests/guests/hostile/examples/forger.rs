//! Answers each message as if it were the answer to another call, whose number is the message's payload. It does not answer `silent`.

use pinion_sdk::{Batch, Function, InitError};

/// The offset of the call's number in a message, and that of the payload.
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
