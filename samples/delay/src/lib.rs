//! Sends each packet on a fixed time after it came: the length of a cable, for whoever wants to know how something does at the far end of a
//! long one. What does not find room on the way is lost, as on any.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use pinion_sdk::{Batch, Function, Held, InitError, Shelf, clock};

/// Packets that are under way at once; a node drops what comes beyond.
const SLOTS: usize = 1024;

/// The longest delay.
const DELAY_NS_MAX: u64 = 10_000_000_000;

/// Bytes of a refused configuration that are repeated.
const SHOWN_BYTES_MAX: usize = 64;

/// The function.
#[derive(Debug)]
pub struct Delay {
    delay_ns: u64,
    /// With the time at which it arrives; as the delay is the same for all, in that order.
    under_way: VecDeque<(u64, Held)>,
}

impl Function for Delay {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let delay_ns = parse(config).ok_or_else(|| {
            let shown = config[..config.len().min(SHOWN_BYTES_MAX)].escape_ascii();
            InitError::new(format!(
                "delay takes a time of up to ten seconds, like `500us` or `20ms`, and was given `{shown}`"
            ))
        })?;
        Ok(Self { delay_ns, under_way: VecDeque::with_capacity(SLOTS) })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let due_ns = clock::now_ns() + self.delay_ns;
        self.under_way.extend(batch.map(|packet| (due_ns, packet.hold())));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.under_way.front().map(|(due_ns, _)| *due_ns)
    }

    fn expire(&mut self, shelf: Shelf<'_>) {
        let now_ns = clock::now_ns();
        while let Some((_, held)) = self.under_way.pop_front_if(|(due_ns, _)| *due_ns <= now_ns) {
            shelf.take(held).send();
        }
    }
}

/// Nanoseconds of a time like `20ms`.
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
