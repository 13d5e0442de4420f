//! Keeps the core from its first packet on, in one of several ways. Its configuration selects the way:
//!
//! | configuration | what it does, for ever                                                        |
//! |---------------|-------------------------------------------------------------------------------|
//! | `loops`       | loops                                                                         |
//! | `recurses`    | calls itself, and returns                                                     |
//! | `fills`       | fills 8 MiB by one instruction                                                |
//! | `stores`      | writes to 1,296 pages in straight code, of which none was touched at first    |
//! | `calls`       | asks for random bytes and the time                                            |
//! | `logs`        | writes lines to its log                                                       |
//! | `waits`       | waits for a deadline that has passed                                          |

#![cfg(target_family = "wasm")]

use std::hint::black_box;

use pinion_hostile_guests::memory;
use pinion_sdk::{Batch, Function, InitError, Slots, clock, error, random};

const FILLED_PAGES: usize = 128;
/// The page size of the system.
const SYSTEM_PAGE_BYTES: usize = 4096;
/// As many as `straight_stores` writes, 6 to the power of 4, and one.
const STORED_PAGES: usize = 1297 * SYSTEM_PAGE_BYTES / memory::PAGE_BYTES + 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Loops,
    Recurses,
    Fills,
    Stores,
    Calls,
    Logs,
    Waits,
}

struct Brute {
    how: How,
    begun: bool,
}

impl Function for Brute {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let how = match config {
            b"loops" => How::Loops,
            b"recurses" => How::Recurses,
            b"fills" => How::Fills,
            b"stores" => How::Stores,
            b"calls" => How::Calls,
            b"logs" => How::Logs,
            b"waits" => How::Waits,
            other => return Err(InitError::new(format!("it knows no way called {:?}", other.escape_ascii()))),
        };
        Ok(Self { how, begun: false })
    }

    fn handle(&mut self, _batch: Batch<'_>) {
        self.begun = true;
        match self.how {
            How::Loops => loop {
                std::hint::spin_loop();
            },
            How::Recurses => loop {
                black_box(fibonacci(black_box(40)));
            },
            How::Fills => fill(),
            How::Stores => store(),
            How::Calls => call(),
            How::Logs => loop {
                error!("{:1000}", black_box("this line is never read"));
            },
            How::Waits => {}
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        (self.how == How::Waits && self.begun).then_some(0)
    }

    fn expire(&mut self, _slots: Slots<'_>) {}
}

fn fibonacci(n: u64) -> u64 {
    if n < 2 { n } else { fibonacci(black_box(n - 1)) + fibonacci(black_box(n - 2)) }
}

fn fill() {
    let pages = memory::grow(FILLED_PAGES).expect("8 MiB");
    loop {
        memory::fill_at_once(pages.clone(), black_box(7));
    }
}

fn store() {
    let mut at = memory::grow(STORED_PAGES).expect("six MiB").start;
    let start = at;
    loop {
        straight_stores(&mut at);
        at = start;
    }
}

macro_rules! six_times {
    ($($what:tt)*) => {
        $($what)* $($what)* $($what)* $($what)* $($what)* $($what)*
    };
}

/// Contains no loop, and no call that is not inlined.
#[inline(never)]
fn straight_stores(at: &mut usize) {
    six_times! { six_times! { six_times! { six_times! {
        memory::write(*at, 1);
        *at += SYSTEM_PAGE_BYTES;
    } } } }
}

fn call() {
    let mut bytes = [0; 4096];
    loop {
        random::fill(&mut bytes);
        black_box(clock::now_ns());
    }
}

pinion_sdk::export!(Brute);
