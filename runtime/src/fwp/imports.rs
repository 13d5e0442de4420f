//! The imports of a guest in a node: those that a guest has anywhere ([`pinion_guest::calls`]), `wait`, `wait_until` and `yield`, and the calls
//! of WASI, wasi-nn and for keys that may take several turns. These are async functions of the engine, which allocate.
//!
//! The list of imports is the builder's [`pinion_builder::admission`]; a module with any other import is refused before it gets here.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use pinion_abi::{
    DEADLINE_PASSED, Errno, IMPORT_KEY_SIGN, IMPORT_MODULE, IMPORT_WAIT, IMPORT_WAIT_UNTIL, IMPORT_YIELD, LogLevel,
};
use pinion_guest::calls::keys::{Keys, Sign};
use pinion_guest::calls::nn::{
    NN_COMPUTE, NN_GET_OUTPUT, NN_INIT_EXECUTION_CONTEXT, NN_LOAD_BY_NAME, NN_MODULE, NN_SET_INPUT, NnCall, NnErrno,
};
use pinion_guest::calls::{self, Asks, Host, INIT_SLEEP_MAX, POLL_ONEOFF, Polled, RANDOM_GET, RandomGet, WASI_MODULE};
use pinion_guest::files::{Files, Space};
use pinion_keys::{SignError, Signature};
use wasmtime::{AsContextMut, Caller, Engine, Linker, Memory};

use crate::clock;
use crate::fwp::end_reason::{EndReason, Stop};
use crate::fwp::{FwpContext, NEVER_NS};
use crate::offload::{Kind, NotDone, Ticket};
use crate::state::Grants;
use crate::tenants::accounts::OverLimit;

/// Links every import to its implementation, for one engine.
///
/// # Errors
/// wasmtime's, if a name were defined twice.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<FwpContext>> {
    let mut linker = Linker::new(engine);
    linker
        .func_wrap(IMPORT_MODULE, IMPORT_WAIT, wait)?
        .func_wrap(IMPORT_MODULE, IMPORT_WAIT_UNTIL, wait_until)?
        .func_wrap(IMPORT_MODULE, IMPORT_YIELD, |caller: Caller<'_, FwpContext>| FwpContext::give_way(&caller))?
        .func_wrap_async(IMPORT_MODULE, IMPORT_KEY_SIGN, key_sign)?
        .func_wrap_async(WASI_MODULE, RANDOM_GET, random_get)?
        .func_wrap_async(WASI_MODULE, POLL_ONEOFF, poll_oneoff)?
        .func_wrap_async(NN_MODULE, NN_LOAD_BY_NAME, |caller, (name, len, graph): (i32, i32, i32)| {
            nn_in_turns(caller, NnCall::LoadByName { name, len, graph })
        })?
        .func_wrap_async(NN_MODULE, NN_INIT_EXECUTION_CONTEXT, |caller, (graph, context): (i32, i32)| {
            nn_in_turns(caller, NnCall::InitExecutionContext { graph, context })
        })?
        .func_wrap_async(NN_MODULE, NN_SET_INPUT, |caller, (context, index, tensor): (i32, i32, i32)| {
            nn_in_turns(caller, NnCall::set_input(context, index, tensor))
        })?
        .func_wrap_async(
            NN_MODULE,
            NN_GET_OUTPUT,
            |caller, (context, index, buffer, capacity, size): (i32, i32, i32, i32, i32)| {
                nn_in_turns(caller, NnCall::get_output(context, index, buffer, capacity, size))
            },
        )?
        .func_wrap_async(NN_MODULE, NN_COMPUTE, nn_compute)?;
    calls::define(&mut linker)?;
    Ok(linker)
}

/// Returns how many packets the worker has published since the guest last waited. If none, ends the turn: it advances the engine's epoch,
/// so that the guest is suspended at its next loop or function boundary, by the mechanism that preempts it. Unlike an async import, this
/// allocates nothing. The worker then exchanges the rings.
fn wait(caller: Caller<'_, FwpContext>) -> wasmtime::Result<i32> {
    let fresh = fresh(&caller, IMPORT_WAIT)?.unwrap_or(0);
    if fresh == 0 {
        suspend(&caller, NEVER_NS);
    }
    Ok(fresh)
}

/// Like `wait`, with a deadline by the guest's clock, at which the guest continues even if nothing was published. A guest that waits for a
/// time that has passed ends its turn as well, and is told so in its next turn. So no guest can keep the core with this call, and the rings
/// are exchanged in between.
fn wait_until(caller: Caller<'_, FwpContext>, deadline_ns: i64) -> wasmtime::Result<i32> {
    let deadline_ns = caller.data().clock.reaches(deadline_ns.max(0) as u64);
    match fresh(&caller, IMPORT_WAIT_UNTIL)? {
        Some(fresh) if fresh > 0 => Ok(fresh),
        Some(_) if clock::now_ns() >= deadline_ns => Ok(DEADLINE_PASSED),
        _ => {
            suspend(&caller, deadline_ns);
            Ok(0)
        }
    }
}

/// Returns how many packets were published since the guest was last told; none if the rings were not exchanged since.
#[inline]
fn fresh(caller: &Caller<'_, FwpContext>, import: &'static str) -> wasmtime::Result<Option<i32>> {
    let context = caller.data();
    if !context.joined {
        return Err(Stop(EndReason::WaitInInit(import)).into());
    }
    let fresh = context.shared.take_fresh();
    if fresh.is_some_and(|fresh| fresh > 0) && context.shared.begins_to_serve() {
        context.begin_to_serve();
    }
    Ok(fresh.map(|fresh| fresh as i32))
}

/// Ends the guest's turn at its next boundary.
#[inline]
fn suspend(caller: &Caller<'_, FwpContext>, deadline_ns: u64) {
    caller.data().shared.wait_until(deadline_ns);
    caller.engine().increment_epoch();
}

/// What an async import returns to the engine.
type InTurns<'a> = Box<dyn Future<Output = wasmtime::Result<i32>> + Send + 'a>;

/// Fills memory with random bytes, in as many of the guest's turns as that takes.
fn random_get(mut caller: Caller<'_, FwpContext>, (ptr, len): (i32, i32)) -> InTurns<'_> {
    Box::new(async move {
        let mut call = RandomGet::new(ptr, len);
        loop {
            if let Some(errno) = call.step(&mut caller)? {
                return Ok(errno);
            }
            end_turn(&mut caller).await;
        }
    })
}

/// Waits until one of some subscriptions is due. Until then the guest is suspended, where it is: its rings are not exchanged, so that packets
/// wait for it as for a guest that is busy.
fn poll_oneoff(mut caller: Caller<'_, FwpContext>, arguments: (i32, i32, i32, i32)) -> InTurns<'_> {
    Box::new(async move {
        let call = match calls::Poll::begin(&mut caller, arguments) {
            Ok(call) => call,
            Err(errno) => return Ok(errno),
        };
        while !caller.data_mut().charge(call.cost_bytes()) {
            end_turn(&mut caller).await;
        }
        let mut is_asleep = false;
        loop {
            match call.look(&mut caller) {
                Polled::Done(errno) => return Ok(errno),
                Polled::Until { clock_ns } => {
                    let context = caller.data_mut();
                    if context.joined {
                        context.shared.sleep_until(context.clock.reaches(clock_ns));
                    } else if !is_asleep {
                        context.sleep_in_init(clock_ns)?;
                    }
                    is_asleep = true;
                }
            }
            end_turn(&mut caller).await;
        }
    })
}

/// Signs a handshake with a key that the stage was granted. Another thread does that, and the guest sleeps meanwhile, as in `poll_oneoff`.
fn key_sign(mut caller: Caller<'_, FwpContext>, arguments: (i32, i32, i32, i32, i32, i32)) -> InTurns<'_> {
    Box::new(async move {
        while !caller.data_mut().charge(Sign::COST_BYTES) {
            end_turn(&mut caller).await;
        }
        let signed = match Sign::begin(&mut caller, arguments) {
            Ok(mut call) => sign(&mut caller, &mut call).await.map(|signature| call.finish(&mut caller, &signature)),
            Err(errno) => Err(errno),
        };
        Ok(signed.unwrap_or_else(Errno::negated))
    })
}

async fn sign(caller: &mut Caller<'_, FwpContext>, call: &mut Sign) -> Result<Signature, Errno> {
    let context = caller.data();
    let offload = context.offload();
    let job = context.granted.keys().sign(call.key, call.scheme, std::mem::take(&mut call.message))?;
    let ticket = offload?.submit(Kind::Signer, move || Ok(job())).map_err(|_| Errno::Busy)?;
    match outcome(caller, ticket).await {
        Ok(Ok(signature)) => Ok(signature),
        // What takes the library's arithmetic is judged on that thread.
        Ok(Err(SignError::NoHandshake | SignError::Scheme(_))) => Err(Errno::Refused),
        _ => Err(Errno::Busy),
    }
}

/// Lets the guest sleep until a job of its FWP is done. Its rings are not exchanged meanwhile, so that packets wait for it.
async fn outcome<T>(caller: &mut Caller<'_, FwpContext>, ticket: Ticket<T>) -> Result<T, NotDone> {
    loop {
        if let Some(done) = ticket.take() {
            return done;
        }
        caller.data().shared.sleep_until(NEVER_NS);
        end_turn(caller).await;
    }
}

/// Runs a model. Another thread does that, and the guest sleeps meanwhile, as in `poll_oneoff`.
fn nn_compute(mut caller: Caller<'_, FwpContext>, (context,): (i32,)) -> InTurns<'_> {
    Box::new(async move {
        while !caller.data_mut().charge(0) {
            end_turn(&mut caller).await;
        }
        let computed = compute(&mut caller, context as u32).await;
        Ok(computed.map_or_else(|errno| errno, |()| NnErrno::Success) as i32)
    })
}

async fn compute(caller: &mut Caller<'_, FwpContext>, context: u32) -> Result<(), NnErrno> {
    let run = caller.data_mut().granted.inference_mut()?.run(context)?;
    let offload = caller.data().offload().map_err(|_| NnErrno::Busy)?;
    let ticket = offload.submit(Kind::Inference, move || run.work()).map_err(|_| NnErrno::Busy)?;
    let (errno, level, sentence) = match outcome(caller, ticket).await {
        Ok(Ok(outputs)) => {
            caller.data_mut().granted.inference_mut()?.done(context, outputs);
            return Ok(());
        }
        Ok(Err(error)) => (NnErrno::RuntimeError, LogLevel::Error, error.to_string()),
        Err(NotDone::Panicked) => {
            (NnErrno::RuntimeError, LogLevel::Error, "the library that runs models failed".to_owned())
        }
        Err(NotDone::Memory(over)) => (NnErrno::Busy, LogLevel::Warn, no_memory(over)),
    };
    caller.data_mut().log(level, format!("wasi-nn: {sentence}").as_bytes());
    Err(errno)
}

/// Returns the sentence for the tenant of a model that was not run.
fn no_memory(OverLimit { wanted_kib, limit_kib, .. }: OverLimit) -> String {
    format!(
        "the run takes {wanted_kib} KiB of memory, and the tenant would have more than the {limit_kib} KiB that the node grants it: keep fewer \
         instances ready (cache_min, cache_max), or ask the operator to raise the tenant's memory_mib"
    )
}

/// Does a call of wasi-nn that copies, in as many of the guest's turns as that takes.
fn nn_in_turns(mut caller: Caller<'_, FwpContext>, mut call: NnCall) -> InTurns<'_> {
    Box::new(async move {
        loop {
            if let Some(errno) = call.step(&mut caller) {
                return Ok(errno);
            }
            end_turn(&mut caller).await;
        }
    })
}

impl FwpContext {
    /// Counts a sleep until the guest's clock says `clock_ns`. Before the guest has a worker its deadline would be noticed by none: then it
    /// goes on in the next step of its preparation, until its time is over or it sleeps for longer than it may there, in all.
    #[cold]
    fn sleep_in_init(&mut self, clock_ns: u64) -> wasmtime::Result<()> {
        let for_ns = clock_ns.saturating_sub(self.clock_ns());
        self.slept_in_init_ns = self.slept_in_init_ns.saturating_add(for_ns);
        if u128::from(self.slept_in_init_ns) > INIT_SLEEP_MAX.as_nanos() {
            return Err(Stop(EndReason::SleptInInit).into());
        }
        Ok(())
    }
}

/// Ends the guest's turn, and goes on in its next one with a quantum of its own.
async fn end_turn(caller: &mut Caller<'_, FwpContext>) {
    let mut is_over = false;
    poll_fn(|_| if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    caller.as_context_mut().set_epoch_deadline(1);
}

impl Host for FwpContext {
    type State = Grants;

    #[inline]
    fn charge(&mut self, bytes: u32) -> bool {
        self.shared.charge(bytes)
    }

    fn overdraw(&mut self) -> bool {
        self.shared.overdraw()
    }

    fn log(&mut self, level: LogLevel, line: &[u8]) {
        self.log.line(level, line);
    }

    fn lose_line(&mut self) {
        self.log.lose_line();
    }

    fn config(&self) -> Arc<[u8]> {
        Arc::clone(&self.config)
    }

    fn files(&mut self) -> Option<(&mut Files, &mut dyn Space)> {
        Some((self.files.as_deref_mut()?, &mut self.limit))
    }

    fn keep_streams(&mut self) {
        self.files = Some(Box::new(Files::of_streams()));
    }

    fn clock_ns(&self) -> u64 {
        self.clock.at(clock::now_ns())
    }

    fn clock_step_ns(&self) -> u64 {
        self.clock.step_ns()
    }

    fn wall_clock_ns(&mut self) -> u64 {
        self.wall_clock.at(self.clock, clock::now_ns())
    }

    fn keep_alive_until(&mut self, until_ns: u64) -> u64 {
        FwpContext::keep_alive_until(self, until_ns)
    }

    fn random(&mut self, _: Asks, bytes: &mut [u8]) -> wasmtime::Result<()> {
        getrandom::fill(bytes).map_err(|error| Stop(EndReason::broken(wasmtime::Error::msg(error.to_string()))).into())
    }

    #[inline]
    fn memory(&self) -> Option<Memory> {
        self.memory
    }

    fn field(&self, name: &[u8]) -> Option<u32> {
        self.state.number(name)
    }

    #[inline]
    fn state(&self) -> Result<&Grants, Errno> {
        if self.joined { Ok(&self.state) } else { Err(Errno::NotNow) }
    }

    fn with_keys(&self, work: impl FnOnce(&dyn Keys) -> Result<usize, Errno>) -> Result<usize, Errno> {
        work(self)
    }

    fn panic(sentence: String) -> wasmtime::Error {
        Stop(EndReason::Panicked { message: sentence, backtrace: String::new() }).into()
    }

    fn exit(status: i32) -> wasmtime::Error {
        Stop(EndReason::Exited(status)).into()
    }

    /// Ends the guest's turn at its next boundary. Before it has joined its worker it has no turn to end: the epoch belongs to the worker,
    /// and advancing it would end another guest's turn.
    fn give_way(caller: &Caller<'_, Self>) {
        if caller.data().joined {
            caller.engine().increment_epoch();
        }
    }
}
