//! Reads the clock again and again, as a function does that measures how long something of another tenant's takes, and answers a message with
//! the times at which it saw it change.

use std::fmt::Write as _;

use pinion_sdk::{Batch, Function, InitError, Message, clock};

/// How many changes it waits for.
const CHANGES: usize = 40;

struct Watcher;

impl Function for Watcher {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for message in batch.filter_map(|packet| Message::of(packet).ok()) {
            let mut times = String::new();
            let mut last_ns = clock::now_ns();
            for _ in 0..CHANGES {
                let mut now_ns = last_ns;
                while now_ns == last_ns {
                    now_ns = clock::now_ns();
                }
                let _ = write!(times, "{now_ns} ");
                last_ns = now_ns;
            }
            let _ = message.answer(times.as_bytes());
        }
    }
}

pinion_sdk::export!(Watcher);
