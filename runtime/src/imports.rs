//! What a guest in a node may call: what it may call anywhere ([`pinion_guest::calls`]), `wait` and `yield`.
//!
//! The list is the builder's [`pinion_builder::admission`]: what is not on it is refused before it gets here.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use pinion_abi::{CLOCK_STEP_NS, IMPORT_MODULE, IMPORT_WAIT, IMPORT_YIELD, LogLevel};
use pinion_guest::calls::{self, Asks, Host};
use wasmtime::{Caller, Engine, Linker};

use crate::end::{EndReason, Stop};
use crate::fwp::FwpContext;

/// Joins every import to its implementation, for one engine.
///
/// # Errors
/// wasmtime's, if a name were defined twice.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<FwpContext>> {
    let mut linker = Linker::new(engine);
    linker.func_wrap(IMPORT_MODULE, IMPORT_WAIT, wait)?.func_wrap(
        IMPORT_MODULE,
        IMPORT_YIELD,
        |caller: Caller<'_, FwpContext>| FwpContext::give_way(&caller),
    )?;
    calls::define(&mut linker)?;
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
    } else if context.shared.begins_to_serve() {
        context.begin_to_serve();
    }
    Ok(fresh as i32)
}

/// The guests' zero of time.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Host for FwpContext {
    fn charge(&mut self, bytes: u32) -> bool {
        self.shared.charge(bytes)
    }

    fn log(&mut self, level: LogLevel, line: &[u8]) {
        self.log.line(level, line);
    }

    fn config(&self) -> Arc<[u8]> {
        Arc::clone(&self.config)
    }

    fn clock_ns(&self) -> u64 {
        let now_ns = ORIGIN.elapsed().as_nanos() as u64;
        now_ns - now_ns % CLOCK_STEP_NS
    }

    fn random(&mut self, _: Asks, bytes: &mut [u8]) -> wasmtime::Result<()> {
        getrandom::fill(bytes).map_err(|error| Stop(EndReason::broken(wasmtime::Error::msg(error.to_string()))).into())
    }

    fn exit(status: i32) -> wasmtime::Error {
        Stop(EndReason::Exited(status)).into()
    }

    /// Ends the guest's turn at its next boundary. Before it has joined its worker it has no turn to end: the epoch it would
    /// move on is the worker's, and somebody else's turn.
    fn give_way(caller: &Caller<'_, Self>) {
        if caller.data().joined {
            caller.engine().increment_epoch();
        }
    }
}
