//! Uses Rust's own library for time and chance, as programs do that know nothing of Pinion. A message says what is to be answered:
//!
//! | message | answer |
//! |---|---|
//! | `date` | the nanoseconds since 1970 |
//! | `sleep MS` | the nanoseconds that `Instant` says a sleep of so many milliseconds took |
//! | `seed` | what the seed of a hash table made in `init` makes of a number |

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pinion_sdk::{Batch, Function, InitError, Message};

struct Sleeper {
    seed: RandomState,
}

impl Function for Sleeper {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { seed: RandomState::new() })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for message in batch.filter_map(|packet| Message::of(packet).ok()) {
            let order = String::from_utf8_lossy(message.payload()).into_owned();
            let answer = match order.split_once(' ') {
                Some(("sleep", ms)) => {
                    let start = Instant::now();
                    thread::sleep(Duration::from_millis(ms.parse().unwrap_or(0)));
                    start.elapsed().as_nanos()
                }
                _ if order == "date" => {
                    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
                }
                _ => self.seed.hash_one(7).into(),
            };
            let _ = message.answer(answer.to_string().as_bytes());
        }
    }
}

pinion_sdk::export!(Sleeper);
