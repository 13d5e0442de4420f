//! Forwards each packet a fixed time after it was received, like a long cable, for tests of how a service behaves at
//! the far end of a long path. Packets beyond its capacity are lost, as on a real path.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use pinion_sdk::{Batch, Function, Held, InitError, KeepAlive, Slots, clock};

/// Packets that can be held at once; a node drops further ones.
const SLOTS: usize = 1024;

/// The longest delay.
const DELAY_NS_MAX: u64 = 10_000_000_000;

/// Most bytes of a refused configuration that the refusal quotes.
const SHOWN_BYTES_MAX: usize = 64;

/// The function.
#[derive(Debug)]
pub struct Delay {
    delay_ns: u64,
    /// Each packet with the time at which it is due. As the delay is the same for all, they are in that order.
    under_way: VecDeque<(u64, Held)>,
    keep_alive: KeepAlive,
}

impl Function for Delay {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let delay_ns = parse(config).ok_or_else(|| {
            let shown = config[..config.len().min(SHOWN_BYTES_MAX)].escape_ascii();
            InitError::new(format!(
                "delay takes a time of up to ten seconds, like `500us` or `20ms`, and was given `{shown}`"
            ))
        })?;
        Ok(Self { delay_ns, under_way: VecDeque::with_capacity(SLOTS), keep_alive: KeepAlive::default() })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let due_ns = clock::now_ns() + self.delay_ns;
        self.under_way.extend(batch.map(|packet| (due_ns, packet.hold())));
        // Regardless of the chain's idle time: held packets are to arrive.
        self.keep_alive.until(Some(due_ns));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.under_way.front().map(|(due_ns, _)| *due_ns)
    }

    fn expire(&mut self, slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        while let Some((_, held)) = self.under_way.pop_front_if(|(due_ns, _)| *due_ns <= now_ns) {
            slots.take(held).send();
        }
    }
}

/// Returns the nanoseconds of a time like `20ms`.
fn parse(config: &[u8]) -> Option<u64> {
    let text = str::from_utf8(config).ok()?.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let unit_ns = match unit.trim_start() {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ns).filter(|delay_ns| *delay_ns <= DELAY_NS_MAX)
}

pinion_sdk::export!(Delay, slots = SLOTS);
