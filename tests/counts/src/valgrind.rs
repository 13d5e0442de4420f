//! Requests to valgrind from the program that runs under it: when to count, and when to write down what was counted.
//!
//! A request is a row of instructions that have no effect on a processor, and that valgrind recognises (its `valgrind.h`, "client
//! requests"). Outside valgrind a request does nothing.
#![allow(unsafe_code)] // Speaks to valgrind by instructions.

use std::arch::asm;
use std::ffi::CString;

const IS_RUNNING: u64 = 0x1001;
const CALLGRIND: u64 = (b'C' as u64) << 24 | (b'T' as u64) << 16;
const ZERO_STATS: u64 = CALLGRIND + 1;
const TOGGLE_COLLECT: u64 = CALLGRIND + 2;
const DUMP_STATS_AT: u64 = CALLGRIND + 3;
const START_INSTRUMENTATION: u64 = CALLGRIND + 4;

#[inline(never)]
fn request(code: u64, argument: u64) -> u64 {
    let block = [code, argument, 0, 0, 0, 0];
    let mut answer = 0_u64;
    // SAFETY: on a processor this rotates `rdi` by 128 bits in all and exchanges `rbx` with itself, which changes flags only. Valgrind reads
    // six words at `rax`, which live as long as this function, and writes `rdx`.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") block.as_ptr(),
            inout("rdx") answer,
            options(nostack)
        );
    }
    answer
}

/// Whether this process runs under valgrind.
pub(crate) fn is_running() -> bool {
    request(IS_RUNNING, 0) != 0
}

/// Begins to simulate. Done once, after the set-up, as it takes most of the time.
pub(crate) fn start() {
    request(START_INSTRUMENTATION, 0);
}

/// Counts what `work` does, besides what was counted since the last [`write_down`].
pub(crate) fn counted<R>(work: impl FnOnce() -> R) -> R {
    request(TOGGLE_COLLECT, 0);
    let result = work();
    request(TOGGLE_COLLECT, 0);
    result
}

/// Forgets what was counted.
pub(crate) fn forget() {
    request(ZERO_STATS, 0);
}

/// Writes down what was counted, under a name, and begins at zero again.
pub(crate) fn write_down(name: &str) {
    let name = CString::new(name).expect("a name without NUL");
    request(DUMP_STATS_AT, name.as_ptr().addr() as u64);
}
