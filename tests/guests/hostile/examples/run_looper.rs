//! Loops for ever before its first wait.

#![cfg(target_family = "wasm")]

use pinion_abi::InitStatus;
use pinion_hostile_guests::raw::Pool;

fn init() -> InitStatus {
    InitStatus::Ready
}

fn run(_pool: &Pool) {
    loop {
        std::hint::spin_loop();
    }
}

pinion_hostile_guests::export_raw!(init = init, run = run);
