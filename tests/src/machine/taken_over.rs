//! A process that was taken over: has a thread of another process make a system call, as code that has escaped from its sandbox would.
//!
//! The thread is stopped by `ptrace`, and set to an instruction of the kernel's own code in each process (vDSO) that makes a system call.
//! Afterwards it goes on with what it was doing.

use std::ffi::c_long;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The instruction that makes a system call.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Below the stack pointer, beyond what a function may use there without moving it.
const BELOW_STACK: u64 = 1024;
/// A handler of a signal takes fewer instructions.
const STEPS_MAX: usize = 100_000;

/// What came of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call returned; errors are negative.
    Returned(i64),
    /// The process was ended by this signal.
    Killed(Signal),
}

/// An argument of a system call.
#[derive(Debug, Clone, Copy)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A pointer to this text, with a zero at its end: at most 63 bytes.
    Text(&'static str),
}

/// Has a thread make a system call.
///
/// # Panics
/// If the thread cannot be stopped or does something else.
#[must_use]
pub fn call(process: i32, thread: i32, number: usize, arguments: &[Value]) -> Outcome {
    let tid = Pid::from_raw(thread);
    ptrace::seize(tid, ptrace::Options::empty()).expect("root may stop threads");
    ptrace::interrupt(tid).expect("it is seized");
    let stopped = wait(tid);
    assert!(matches!(stopped, WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)), "{stopped:?}");
    let before = ptrace::getregs(tid).expect("it is stopped");
    let instruction = instruction(process);

    let mut registers = before;
    let mut values = [0; 6];
    let mut free = (before.rsp - BELOW_STACK) & !15;
    for (value, argument) in values.iter_mut().zip(arguments) {
        *value = match argument {
            Value::Number(number) => *number,
            Value::Text(text) => {
                free -= 64;
                write(tid, free, text);
                free
            }
        };
    }
    let [rdi, rsi, rdx, r10, r8, r9] = values;
    (registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9) =
        (rdi, rsi, rdx, r10, r8, r9);
    (registers.rip, registers.rax, registers.orig_rax) = (instruction, number as u64, u64::MAX);
    registers.rsp = free - 256;
    ptrace::setregs(tid, registers).expect("it is stopped");

    let mut signal = None;
    for _ in 0..STEPS_MAX {
        ptrace::step(tid, signal).expect("it is stopped");
        signal = match wait(tid) {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => None,
            // Passed on: the process handles it.
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::PtraceEvent(..) => None,
            WaitStatus::Signaled(_, signal, _) => return Outcome::Killed(signal),
            other => panic!("the thread has done something else: {other:?}"),
        };
        let now = ptrace::getregs(tid).expect("it is stopped");
        if signal.is_none() && now.rip == instruction + SYSCALL.len() as u64 {
            ptrace::setregs(tid, before).expect("it is stopped");
            ptrace::detach(tid, None).expect("it is stopped");
            return Outcome::Returned(now.rax.cast_signed());
        }
    }
    panic!("the thread does not come back from the system call");
}

fn wait(thread: Pid) -> WaitStatus {
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it is traced")
}

/// Returns the address of an instruction that makes a system call.
fn instruction(process: i32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("the process is there");
    let range = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(|line| line.split(' ').next());
    let (start, end) = range.and_then(|range| range.split_once('-')).expect("each process has a vDSO");
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).expect("an address"));
    let mut code = vec![0; (end - start) as usize];
    let memory = File::open(format!("/proc/{process}/mem")).expect("root may read it");
    memory.read_exact_at(&mut code, start).expect("it is mapped");
    let offset = code.windows(2).position(|bytes| bytes == SYSCALL).expect("it makes system calls");
    start + offset as u64
}

fn write(thread: Pid, at: u64, text: &str) {
    let mut bytes = [0; 64];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    for (number, word) in bytes.chunks_exact(8).enumerate() {
        let word = c_long::from_ne_bytes(word.try_into().expect("eight bytes"));
        ptrace::write(thread, (at + 8 * number as u64) as ptrace::AddressType, word).expect("its stack is writable");
    }
}
