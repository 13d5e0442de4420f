//! What a guest may call: the `pinion` imports and the few WASI functions that libc and std need.
//!
//! Each is bounded in time by a constant, and all of one turn together by an allowance of bytes; none blocks, and none gives
//! a guest anything that its chain was not granted. The list is the builder's [`pinion_builder::admission`]: what is not on
//! it is refused before it gets here.

use std::time::Instant;

use pinion_abi::{
    CLOCK_STEP_NS, EXPORT_MEMORY, Errno, IMPORT_CLOCK, IMPORT_CONFIG, IMPORT_LOG, IMPORT_MODULE, IMPORT_RANDOM,
    IMPORT_WAIT, IMPORT_YIELD, LOG_LINE_BYTES_MAX, LogLevel, RANDOM_BYTES_MAX,
};
use wasmtime::{Caller, Engine, Extern, Linker};

use crate::end::{EndReason, Stop};
use crate::fwp::FwpContext;

/// Joins every import to its implementation, for one engine.
///
/// # Errors
/// wasmtime's, if a name were defined twice.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<FwpContext>> {
    let mut linker = Linker::new(engine);
    let origin = Instant::now();
    linker
        .func_wrap(IMPORT_MODULE, IMPORT_WAIT, wait)?
        .func_wrap(IMPORT_MODULE, IMPORT_YIELD, |caller: Caller<'_, FwpContext>| give_way(&caller))?
        .func_wrap(IMPORT_MODULE, IMPORT_LOG, log)?
        .func_wrap(IMPORT_MODULE, IMPORT_CLOCK, move |_: Caller<'_, FwpContext>| coarse_ns(origin) as i64)?
        .func_wrap(IMPORT_MODULE, IMPORT_RANDOM, random)?
        .func_wrap(IMPORT_MODULE, IMPORT_CONFIG, config)?;
    crate::wasi::define(&mut linker, origin)?;
    Ok(linker)
}

/// How many packets its worker has published since it last waited. With none, ends the turn: moves the engine's epoch on, so that
/// the guest is suspended at its next loop or function boundary, by the mechanism that preempts it. Unlike an async import this
/// allocates nothing. Its worker then exchanges the rings.
fn wait(caller: Caller<'_, FwpContext>) -> wasmtime::Result<i32> {
    let context = caller.data();
    if !context.joined {
        return Err(Stop(EndReason::WaitInInit).into());
    }
    context.shared.note_call(context);
    let fresh = context.shared.take_fresh();
    if fresh == 0 {
        context.shared.set_waiting(true);
        caller.engine().increment_epoch();
    }
    Ok(fresh as i32)
}

/// Ends the guest's turn at its next boundary. Before it has joined its worker it has no turn to end: the epoch it would
/// move on is the worker's, and somebody else's turn.
pub(crate) fn give_way(caller: &Caller<'_, FwpContext>) {
    if caller.data().joined {
        caller.engine().increment_epoch();
    }
}

fn log(mut caller: Caller<'_, FwpContext>, level: i32, ptr: i32, len: i32) {
    let mut line = [0; LOG_LINE_BYTES_MAX as usize];
    let kept = (len as u32 as usize).min(line.len());
    if caller.data().shared.charge(LOG_LINE_BYTES_MAX) && read(&mut caller, ptr, &mut line[..kept]).is_some() {
        caller.data_mut().log.line(LogLevel::from_guest(level), &line[..kept]);
    }
}

fn random(mut caller: Caller<'_, FwpContext>, ptr: i32, len: i32) -> i32 {
    fill_random(&mut caller, ptr, len) as i32
}

/// Fills guest memory with random bytes.
pub(crate) fn fill_random(caller: &mut Caller<'_, FwpContext>, ptr: i32, len: i32) -> Errno {
    let len = len as u32;
    if len > RANDOM_BYTES_MAX || !caller.data().shared.charge(len) {
        return Errno::TooLong;
    }
    let mut bytes = [0; RANDOM_BYTES_MAX as usize];
    let bytes = &mut bytes[..len as usize];
    if getrandom::fill(bytes).is_err() {
        return Errno::Fault;
    }
    match write(caller, ptr, bytes) {
        Some(()) => Errno::Ok,
        None => Errno::Fault,
    }
}

fn config(mut caller: Caller<'_, FwpContext>, ptr: i32, capacity: i32) -> i32 {
    let config = std::sync::Arc::clone(&caller.data().config);
    let fits = config.len().min(capacity as u32 as usize);
    if !caller.data().shared.charge(fits as u32) {
        return 0;
    }
    match write(&mut caller, ptr, &config[..fits]) {
        Some(()) => config.len() as i32,
        None => 0,
    }
}

/// The time since `origin`, coarse.
pub(crate) fn coarse_ns(origin: Instant) -> u64 {
    let now_ns = origin.elapsed().as_nanos() as u64;
    now_ns - now_ns % CLOCK_STEP_NS
}

fn memory(caller: &mut Caller<'_, FwpContext>) -> Option<wasmtime::Memory> {
    match caller.get_export(EXPORT_MEMORY) {
        Some(Extern::Memory(memory)) => Some(memory),
        _ => None,
    }
}

/// Copies out of guest memory; none if the range is not in it.
pub(crate) fn read(caller: &mut Caller<'_, FwpContext>, ptr: i32, bytes: &mut [u8]) -> Option<()> {
    memory(caller)?.read(&*caller, ptr as u32 as usize, bytes).ok()
}

/// Copies into guest memory; none if the range is not in it.
pub(crate) fn write(caller: &mut Caller<'_, FwpContext>, ptr: i32, bytes: &[u8]) -> Option<()> {
    memory(caller)?.write(&mut *caller, ptr as u32 as usize, bytes).ok()
}
