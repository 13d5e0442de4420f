//! The WASI preview 1 functions that libc and std call at start-up, on panic, for hashing, and for files. Each answers in bounded time or
//! fails with an errno. There are no files except those deployed with the stage ([`files`]), no sockets, no environment, and no ambient
//! authority.

mod files;
pub(super) mod poll;
pub(super) mod random;

use pinion_abi::{LOG_LINE_BYTES_MAX, LogLevel};
use wasmtime::{Caller, Linker};

use super::{Host, WASI_MODULE, charge_to_the_end, read, write};
use crate::files::Stream;

const SUCCESS: i32 = 0;
const BADF: i32 = 8;
const FAULT: i32 = 21;
const INVAL: i32 = 28;

/// The clock that shows the date, and the one that only goes on. Others measure a process's CPU time, which no guest sees.
const CLOCK_REALTIME: i32 = 0;
const CLOCK_MONOTONIC: i32 = 1;

/// Most I/O vectors of one call; further ones are ignored.
const IOVECS_MAX: usize = 16;

/// Adds the functions to a linker.
pub(super) fn define<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    let nothing = |mut caller: Caller<'_, T>, count: i32, bytes: i32| -> i32 {
        let zero = 0_u32.to_le_bytes();
        errno(write(&mut caller, count, &zero).and_then(|()| write(&mut caller, bytes, &zero)))
    };
    linker
        .func_wrap(WASI_MODULE, "args_sizes_get", nothing)?
        .func_wrap(WASI_MODULE, "environ_sizes_get", nothing)?
        .func_wrap(WASI_MODULE, "args_get", |_: i32, _: i32| SUCCESS)?
        .func_wrap(WASI_MODULE, "environ_get", |_: i32, _: i32| SUCCESS)?
        .func_wrap(WASI_MODULE, "clock_res_get", |mut caller: Caller<'_, T>, clock: i32, out: i32| {
            if !matches!(clock, CLOCK_REALTIME | CLOCK_MONOTONIC) {
                return INVAL;
            }
            let step_ns = caller.data().clock_step_ns();
            errno(write(&mut caller, out, &step_ns.to_le_bytes()))
        })?
        .func_wrap(WASI_MODULE, "clock_time_get", |mut caller: Caller<'_, T>, clock: i32, _step: i64, out: i32| {
            let now_ns = match clock {
                CLOCK_REALTIME => caller.data_mut().wall_clock_ns(),
                CLOCK_MONOTONIC => caller.data().clock_ns(),
                _ => return INVAL,
            };
            errno(write(&mut caller, out, &now_ns.to_le_bytes()))
        })?
        .func_wrap(WASI_MODULE, "sched_yield", |caller: Caller<'_, T>| {
            T::give_way(&caller);
            SUCCESS
        })?
        .func_wrap(WASI_MODULE, "proc_exit", |status: i32| -> wasmtime::Result<()> { Err(T::exit(status)) })?;
    define_streams(linker)?;
    files::define(linker)
}

/// Defines the calls that standard streams have in common with files. Two of the streams go to the log.
fn define_streams<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(WASI_MODULE, "fd_write", |mut caller: Caller<'_, T>, fd: i32, iovecs: i32, count: i32, out: i32| {
            match stream(&mut caller, fd) {
                Some(Stream::Output) => write_line(&mut caller, LogLevel::Info, iovecs, count, out),
                Some(Stream::Errors) => write_line(&mut caller, LogLevel::Error, iovecs, count, out),
                Some(Stream::Input) => BADF,
                None => files::fd_write(&mut caller, fd, iovecs, count, None, out),
            }
        })?
        .func_wrap(
            WASI_MODULE,
            "fd_read",
            |mut caller: Caller<'_, T>, fd: i32, iovecs: i32, count: i32, out: i32| match stream(&mut caller, fd) {
                Some(Stream::Input) => errno(write(&mut caller, out, &0_u32.to_le_bytes())),
                Some(Stream::Output | Stream::Errors) => BADF,
                None => files::fd_read(&mut caller, fd, iovecs, count, None, out),
            },
        )?;
    Ok(())
}

/// Returns the stream that a descriptor stands for. A guest without [`crate::files::Files`] has the three streams under their original
/// numbers.
#[inline]
fn stream<T: Host>(caller: &mut Caller<'_, T>, fd: i32) -> Option<Stream> {
    match caller.data_mut().files() {
        Some((files, _)) => files.stream(fd as u32),
        None => Stream::ALL.get(fd as u32 as usize).copied(),
    }
}

/// Returns address and length of an I/O vector; none if the vector is not within guest memory.
fn iovec<T: Host>(caller: &mut Caller<'_, T>, at: i32) -> Option<(i32, u32)> {
    let mut iovec = [0; 8];
    read(caller, at, &mut iovec)?;
    let [a, b, c, d, e, f, g, h] = iovec;
    Some((i32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])))
}

/// Writes each line to the log; all lines of a call together are cut at the length limit of one. All bytes count as written, so that the
/// guest does not try the rest again, also if the call is one of those beyond the turn's allowance that are only counted.
fn write_line<T: Host>(caller: &mut Caller<'_, T>, level: LogLevel, iovecs: i32, count: i32, out: i32) -> i32 {
    let is_granted = charge_to_the_end(caller, LOG_LINE_BYTES_MAX);
    let mut line = [0; LOG_LINE_BYTES_MAX as usize];
    let (mut kept, mut written) = (0, 0_u32);
    for i in 0..count.clamp(0, IOVECS_MAX as i32) {
        let Some((ptr, len)) = iovec(caller, iovecs.wrapping_add(i * 8)) else { return FAULT };
        let take = if is_granted { (len as usize).min(line.len() - kept) } else { 0 };
        if read(caller, ptr, &mut line[kept..kept + take]).is_none() {
            return FAULT;
        }
        kept += take;
        written = written.saturating_add(len);
    }
    if !is_granted && written > 0 {
        caller.data_mut().lose_line();
    }
    let lines = line[..kept].split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !line.is_empty());
    for (number, text) in lines.enumerate() {
        // The first line is already charged. The others are written as well: they are few, since all of them fit into one.
        if number > 0 {
            charge_to_the_end(caller, LOG_LINE_BYTES_MAX);
        }
        caller.data_mut().log(level, text);
    }
    errno(write(caller, out, &written.to_le_bytes()))
}

fn errno(done: Option<()>) -> i32 {
    if done.is_some() { SUCCESS } else { FAULT }
}
