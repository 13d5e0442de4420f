//! Writes a thousand log lines per packet, or as many as its configuration says. Their characters would forge other lines or disturb a
//! terminal if they were passed on unchanged. Then it answers.

use pinion_sdk::{Batch, Function, InitError, debug, error, info};

const LINES_DEFAULT: u32 = 1000;

struct LogFlood {
    lines: u32,
}

impl Function for LogFlood {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        if config.is_empty() {
            return Ok(Self { lines: LINES_DEFAULT });
        }
        let text = str::from_utf8(config).map_err(InitError::new)?;
        let lines = text.trim().parse().map_err(|_| InitError::new(format!("{text:?} is no number of lines")))?;
        Ok(Self { lines })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            for number in 0..self.lines {
                log_line(number);
            }
            pinion_hostile_guests::answer(packet);
        }
    }
}

fn log_line(number: u32) {
    match number % 5 {
        0 => info!("flood {number}\r\nERROR another tenant's line\n"),
        1 => error!("flood {number} \u{1b}[2J\u{1b}]0;title\u{7}\0\u{8}\u{7f}"),
        2 => debug!("flood {number} \u{202e}backwards\u{2028}next\u{85}"),
        3 => info!("flood {number} {}", "x".repeat(4096)),
        _ => log_bytes(),
    }
}

/// Bytes that are not UTF-8.
#[cfg(target_family = "wasm")]
fn log_bytes() {
    pinion_hostile_guests::raw::log(pinion_sdk::LogLevel::Warn, &[b'f', 0xff, 0xc0, 0x80, 0xed, 0xa0, 0x80, 0xf5]);
}

#[cfg(not(target_family = "wasm"))]
fn log_bytes() {}

pinion_sdk::export!(LogFlood);
