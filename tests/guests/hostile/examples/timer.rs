//! Answers, and also waits for deadlines without packets. Its configuration selects them:
//!
//! | configuration | its deadlines                                          |
//! |---------------|--------------------------------------------------------|
//! | `past`        | have always passed, however often it is told so        |
//! | a number      | come every so many milliseconds, from some moment on   |

use pinion_hostile_guests::answer;
use pinion_sdk::{Batch, Function, InitError, Slots, clock, random};

struct Timer {
    period_ns: u64,
    due_ns: u64,
}

impl Function for Timer {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = str::from_utf8(config).map_err(InitError::new)?;
        let period_ms: u64 = if text == "past" { 0 } else { text.parse().map_err(InitError::new)? };
        Ok(Self { period_ns: period_ms * 1_000_000, due_ns: 0 })
    }

    fn start(&mut self) {
        // Otherwise all instances that start at once would have the same deadlines.
        let mut bytes = [0; 8];
        random::fill(&mut bytes);
        if let Some(phase_ns) = u64::from_le_bytes(bytes).checked_rem(self.period_ns) {
            self.due_ns = clock::now_ns() + phase_ns;
        }
    }

    fn handle(&mut self, batch: Batch<'_>) {
        batch.for_each(answer);
    }

    fn deadline_ns(&self) -> Option<u64> {
        Some(self.due_ns)
    }

    fn expire(&mut self, _slots: Slots<'_>) {
        self.due_ns += self.period_ns;
    }
}

pinion_sdk::export!(Timer);
