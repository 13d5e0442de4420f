//! The module's exported entry points. Called by the code that [`export!`](crate::export) generates; [`serve`] is called by each
//! [`Function`]'s loop, and by the fake node of [`crate::testing`].

use crate::packets::pool::Pool;
use crate::{BATCH_PACKETS_MAX, Batch, Function, Slots, clock};

#[cfg(target_family = "wasm")]
pub use entry::{FunctionCell, init, initialize, metrics, report_panics, run};

/// Runs the function after a wait: hands it the packets among `fresh` newly published descriptors, and calls `expire` if its deadline has
/// passed, unless it finishes before that. Returns how many descriptors are left.
pub(crate) fn serve<F: Function>(function: &mut F, pool: &Pool<'_>, mut fresh: u32) -> u32 {
    while fresh > 0 && !pool.is_finished() {
        let count = fresh.min(BATCH_PACKETS_MAX);
        let batch = Batch::of(pool, count);
        if !batch.is_empty() {
            function.handle(batch);
        }
        fresh -= count;
    }
    // The deadline is checked even if packets keep arriving: a busy function has deadlines as well.
    if !pool.is_finished() && function.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= clock::now_ns()) {
        function.expire(Slots::of(pool));
    }
    pool.give_back_dropped();
    fresh
}

#[cfg(target_family = "wasm")]
mod entry {
    use core::cell::RefCell;
    use std::panic::{self, PanicHookInfo};

    use pinion_abi::InitStatus;

    use crate::host::calls;
    use crate::log::line;
    use crate::packets::pool::PoolMemory;
    use crate::{Io, Looping, error, metrics};

    /// Holds a module's function between the node's calls.
    pub type FunctionCell<F> = RefCell<Option<F>>;

    /// `_initialize`. Exporting it also keeps the linker from running all constructors again in each exported function.
    pub fn initialize() {
        calls::initialize();
    }

    /// `pinion_init`.
    pub fn init<F: Looping>(cell: &FunctionCell<F>) -> i32 {
        report_panics();
        match F::init(&calls::config()) {
            Ok(function) => {
                cell.replace(Some(function));
                InitStatus::Ready as i32
            }
            Err(refusal) => {
                error!("{refusal}");
                InitStatus::ConfigRefused as i32
            }
        }
    }

    /// Reports panics to the node from now on.
    pub fn report_panics() {
        panic::set_hook(Box::new(report_and_end));
    }

    /// `pinion_run`. Returns when the function has finished: the node then takes the contents of the transmit ring.
    pub fn run<F: Looping, const SLOTS: usize>(cell: &FunctionCell<F>, memory: &PoolMemory<SLOTS>) {
        let mut cell = cell.borrow_mut();
        let function = cell.as_mut().expect("`pinion_init` comes before `pinion_run`, and must succeed");
        let mut io = Io::new(memory.open(F::OWN_SLOTS));
        function.start();
        function.run(&mut io);
        io.pool.give_back_dropped();
    }

    /// `pinion_metrics`.
    pub fn metrics() -> u32 {
        metrics::publish()
    }

    /// Reports a panic to the node, which ends the instance and informs its tenant. Does not return, so the panic machinery does not print
    /// to a standard error that does not exist.
    fn report_and_end(info: &PanicHookInfo<'_>) {
        let message = info.payload_as_str().unwrap_or("(no message)");
        match info.location() {
            Some(place) => line(format_args!("{place}: {message}"), calls::panic),
            None => calls::panic(message),
        }
    }
}
