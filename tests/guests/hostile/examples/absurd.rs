//! Asks for absurd amounts at absurd addresses, on each packet a thousand times by each of some calls that take an address; then it answers.
//! No such call may succeed, and none may end it.

#![cfg(target_family = "wasm")]
#![allow(unsafe_code)] // the boundary to the host

use pinion_sdk::{Batch, Function, InitError};

const ROUNDS: usize = 1_000;
/// The end of the address space, its half, and what lies before both.
const ADDRESSES: [u32; 4] = [u32::MAX, u32::MAX - 15, 1 << 31, (1 << 31) - 1];
/// The last one is reasonable, so that the address is looked at.
const AMOUNTS: [u32; 4] = [u32::MAX, 1 << 31, 1 << 20, 4];

mod imports {
    #[link(wasm_import_module = "pinion")]
    unsafe extern "C" {
        pub(super) fn log(level: u32, text: u32, len: u32);
        pub(super) fn random(buffer: u32, len: u32) -> i32;
        pub(super) fn config(buffer: u32, capacity: u32) -> i32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn fd_write(fd: u32, vectors: u32, count: u32, written: u32) -> i32;
        pub(super) fn fd_read(fd: u32, vectors: u32, count: u32, read: u32) -> i32;
        pub(super) fn random_get(buffer: u32, len: u32) -> i32;
        pub(super) fn clock_time_get(clock: u32, step: u64, time: u32) -> i32;
        pub(super) fn clock_res_get(clock: u32, step: u32) -> i32;
        pub(super) fn environ_sizes_get(count: u32, bytes: u32) -> i32;
        pub(super) fn fd_fdstat_get(fd: u32, stat: u32) -> i32;
        pub(super) fn fd_prestat_get(fd: u32, stat: u32) -> i32;
    }
}

struct Absurd;

impl Function for Absurd {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            for round in 0..ROUNDS {
                ask(ADDRESSES[round % ADDRESSES.len()], AMOUNTS[round / ADDRESSES.len() % AMOUNTS.len()]);
            }
            pinion_hostile_guests::answer(packet);
        }
    }
}

fn ask(address: u32, amount: u32) {
    // SAFETY: the host checks all addresses, and none of these is in this memory, so that nothing is read or written.
    let errors = unsafe {
        imports::log(3, address, amount);
        [
            imports::random(address, amount),
            imports::fd_write(1, address, amount, address),
            imports::fd_write(u32::MAX, address, amount, address),
            imports::fd_read(amount, address, amount, address),
            imports::random_get(address, amount),
            imports::clock_time_get(amount, u64::MAX, address),
            imports::clock_res_get(amount, address),
            imports::environ_sizes_get(address, address),
            imports::fd_fdstat_get(0, address),
            imports::fd_prestat_get(amount, address),
        ]
    };
    assert!(errors.iter().all(|error| *error != 0), "of {amount} bytes at {address:#x}: {errors:?}");
    // SAFETY: as above.
    assert_eq!(unsafe { imports::config(address, amount) }, 0, "a configuration was written to {address:#x}");
}

pinion_sdk::export!(Absurd);
