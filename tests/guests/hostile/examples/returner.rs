//! Returns from `pinion_run` on its first packet, as no function should.

#![cfg(target_family = "wasm")]

use pinion_abi::InitStatus;
use pinion_hostile_guests::raw::{self, Pool};

fn init() -> InitStatus {
    InitStatus::Ready
}

fn run(pool: &Pool) {
    while pool.receive().is_none() {
        raw::wait();
    }
}

pinion_hostile_guests::export_raw!(init = init, run = run);
