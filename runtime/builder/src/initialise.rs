//! Runs a module's initialisation once, with its configuration, and takes a snapshot of the result.
//!
//! ```text
//!   module --wizer--> instrumented module --instantiate, _initialize, pinion_init, pinion_pool, pinion_metrics--> instance
//!                                                     snapshot of memory and globals <---------------'
//!                                                                  `--wizer--> module that starts there
//! ```
//!
//! Every instance of every client starts from the snapshot, so nothing secret may be in it. The function itself gets no random bytes here,
//! and if its library asks for some, no snapshot is taken. Its clocks stand still at their first step, but for short sleeps, which are over at once. It can
//! read its files but not change them, because no instance would have its changes, or the files it left open.
//!
//! A module of which no snapshot can be taken initialises itself in each instance. It is run here in the same way, as one instance on a
//! node would be, so that a module that would fail in all instances is refused. The result is discarded. Both kinds run under a node's
//! limits of memory, table and instance.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use pinion_abi::{
    EXPORT_INIT, EXPORT_INITIALIZE, EXPORT_MEMORY, EXPORT_METRICS, EXPORT_POOL, Errno, IMPORT_KEY_SIGN, IMPORT_MODULE,
    IMPORT_WAIT, IMPORT_WAIT_UNTIL, IMPORT_YIELD, InitStatus, LogLevel,
};
use pinion_builder_client::metrics::{self, Metric};
use pinion_builder_client::protocol::{BuilderMessage, Pool};
use pinion_guest::calls::keys::{KeyNames, Keys};
use pinion_guest::calls::nn::{
    Graphs, NN_COMPUTE, NN_GET_OUTPUT, NN_INIT_EXECUTION_CONTEXT, NN_LOAD_BY_NAME, NN_MODULE, NN_SET_INPUT, NnCall,
    NnErrno, Tensor,
};
use pinion_guest::calls::state::NoState;
use pinion_guest::calls::{
    self, Asks, Host, INIT_SLEEP_MAX, POLL_ONEOFF, Poll as PollOneoff, Polled, RANDOM_GET, RandomGet, WASI_MODULE,
};
use pinion_guest::fault::{Trapped, cause};
use pinion_guest::files::{Bundle, Files, Space};
use pinion_guest::settings;
use pinion_mma::guest::pool::PoolLayout;
use pinion_text::{SENTENCE_BYTES_MAX, printable};
use rustix::time::{ClockId, clock_gettime};
use wasmtime::{
    Caller, Engine, Instance, InstanceAllocationStrategy, Linker, Memory, Module, OptLevel, ResourceLimiter, Store,
    Trap, UpdateDeadline, Val,
};
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

use crate::progress;
use crate::refused::Refused;

/// CPU time that a module's initialisation may take.
pub const INIT_TIME_MAX: Duration = Duration::from_secs(2);
/// How often the CPU time is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What a guest's clocks show at first. Not zero, which programs take for a clock that does not work.
const CLOCK_BEGIN_NS: u64 = pinion_abi::CLOCK_STEP_NS;

/// Lines that a guest may log meanwhile; of further lines, only the last one is kept.
const LINES_MAX: usize = 100;

/// Why no snapshot is taken of a module whose library asked for random bytes, and what its author can do about it.
const LIBRARY_ASKED_FOR_RANDOM_BYTES: &str = "it asked for random bytes (random_get) during its initialisation, which a snapshot would give to \
     all instances alike";
const WITHOUT_RANDOM_BYTES: &str = "so each instance initialises itself, which takes longer; hash tables of a standard library are seeded \
     that way: to start from a snapshot, make them when the function starts, or with a hasher of your own";

/// The inputs of a snapshot.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The configuration.
    pub config: Arc<[u8]>,
    /// The files that the module sees, if it has a file system.
    pub files: Option<Arc<Bundle>>,
    /// The most linear memory of the guest, in bytes.
    pub memory_bytes_max: u64,
    /// The fields of state that its stage is granted, by number.
    pub fields: Arc<[String]>,
    /// The private keys that its stage is granted, by number.
    pub keys: Arc<[String]>,
    /// The models that its stage is granted, by number.
    pub models: Arc<[String]>,
}

/// The result of an initialisation.
#[derive(Debug)]
pub enum Initialised {
    /// A module that starts where the initialisation ended, and its pool.
    Snapshot {
        /// The module.
        wasm: Vec<u8>,
        /// Its pool.
        pool: Pool,
        /// Its counters and gauges.
        metrics: Vec<Metric>,
    },
    /// No snapshot can be taken of this module, for this reason.
    NotPossible(String),
}

/// The guest's side of a store.
pub struct Guest {
    config: Arc<[u8]>,
    files: Option<Files>,
    room: Room,
    becomes: Becomes,
    /// Why that is nothing, if the guest's calls are the reason.
    no_snapshot_because: Option<&'static str>,
    /// What both clocks show: their first step, and for how long it has slept.
    clock_ns: u64,
    fields: Arc<[String]>,
    keys: Arc<[String]>,
    models: Arc<[String]>,
    say: fn(&BuilderMessage),
    lines: usize,
    last_line: Option<String>,
}

impl Guest {
    /// Returns the data of a store in which nothing runs.
    pub(crate) fn without_configuration() -> Self {
        Self {
            config: Arc::new([]),
            files: None,
            room: Room::default(),
            becomes: Becomes::Snapshot,
            no_snapshot_because: None,
            clock_ns: CLOCK_BEGIN_NS,
            fields: Arc::new([]),
            keys: Arc::new([]),
            models: Arc::new([]),
            say: |_| (),
            lines: 0,
            last_line: None,
        }
    }
}

impl Guest {
    /// Goes on as an instance that initialises itself: it may do from here on what such an instance may.
    fn give_up_snapshot(&mut self, because: &'static str) {
        self.becomes = Becomes::Nothing;
        self.room.files_bytes_max = self.room.bytes_max;
        self.no_snapshot_because = Some(because);
    }
}

/// What an initialised instance is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Becomes {
    /// All instances start from it.
    Snapshot,
    /// It is discarded: each instance does the same itself.
    Nothing,
}

/// The memory that a guest uses, and its limit.
#[derive(Default)]
struct Room {
    memory_bytes: u64,
    /// Memory of its changed files.
    files_bytes: u64,
    /// The limit of both together. For a snapshot, no file may be written.
    bytes_max: u64,
    files_bytes_max: u64,
}

impl Room {
    fn of(wishes: &Wishes, becomes: Becomes) -> Self {
        let bytes_max = wishes.memory_bytes_max;
        let files_bytes_max = if becomes == Becomes::Nothing { bytes_max } else { 0 };
        Self { memory_bytes: 0, files_bytes: 0, bytes_max, files_bytes_max }
    }
}

impl Space for Room {
    fn resize(&mut self, bytes: u64) -> bool {
        let is_granted = bytes <= self.files_bytes_max && self.memory_bytes + bytes <= self.bytes_max;
        if is_granted {
            self.files_bytes = bytes;
        }
        is_granted
    }
}

/// The error with which an import ends the guest.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// The message of a guest's panic.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Panicked(String);

impl Host for Guest {
    type State = NoState;

    fn charge(&mut self, _bytes: u32) -> bool {
        true
    }

    fn overdraw(&mut self) -> bool {
        true
    }

    fn log(&mut self, level: LogLevel, line: &[u8]) {
        let line = printable(line, SENTENCE_BYTES_MAX);
        self.lines += 1;
        if self.lines <= LINES_MAX {
            (self.say)(&BuilderMessage::Log(level, line.clone()));
        }
        self.last_line = Some(line);
    }

    fn lose_line(&mut self) {}

    fn config(&self) -> Arc<[u8]> {
        Arc::clone(&self.config)
    }

    fn files(&mut self) -> Option<(&mut Files, &mut dyn Space)> {
        Some((self.files.as_mut()?, &mut self.room))
    }

    fn keep_streams(&mut self) {
        self.files = Some(Files::of_streams());
    }

    fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    fn clock_step_ns(&self) -> u64 {
        pinion_abi::CLOCK_STEP_NS
    }

    fn wall_clock_ns(&mut self) -> u64 {
        self.clock_ns
    }

    fn keep_alive_until(&mut self, _until_ns: u64) -> u64 {
        0
    }

    fn random(&mut self, asks: Asks, bytes: &mut [u8]) -> wasmtime::Result<()> {
        if self.becomes == Becomes::Snapshot {
            if asks == Asks::Function {
                let sentence = "asked for random bytes, which every instance would share (ask when it starts),";
                return Err(Misuse(sentence.to_owned()).into());
            }
            self.give_up_snapshot(LIBRARY_ASKED_FOR_RANDOM_BYTES);
        }
        getrandom::fill(bytes).map_err(|error| Misuse(format!("found no randomness ({error})")).into())
    }

    fn field(&self, name: &[u8]) -> Option<u32> {
        self.fields.iter().position(|field| field.as_bytes() == name).map(|number| number as u32)
    }

    fn state(&self) -> Result<&NoState, Errno> {
        Err(Errno::NotNow)
    }

    fn with_keys(&self, work: impl FnOnce(&dyn Keys) -> Result<usize, Errno>) -> Result<usize, Errno> {
        work(&KeyNames(&self.keys))
    }

    fn panic(sentence: String) -> wasmtime::Error {
        Panicked(sentence).into()
    }

    fn exit(status: i32) -> wasmtime::Error {
        Misuse(format!("exited with status {status}")).into()
    }

    fn give_way(_: &Caller<'_, Self>) {}
}

/// A guest that is initialised may learn the numbers of its models, which are the same in all instances. Contexts are an instance's own.
impl Graphs for Guest {
    fn graph(&self, name: &[u8]) -> Result<u32, NnErrno> {
        let number = self.models.iter().position(|model| model.as_bytes() == name);
        number.map(|number| number as u32).ok_or(NnErrno::NotFound)
    }

    fn begin(&mut self, _graph: u32) -> Result<u32, NnErrno> {
        Err(NnErrno::Busy)
    }

    fn input(&mut self, _context: u32, _index: u32, _tensor: &Tensor) -> Result<&mut [u8], NnErrno> {
        Err(NnErrno::Busy)
    }

    fn output(&self, _context: u32, _index: u32) -> Result<&[u8], NnErrno> {
        Err(NnErrno::Busy)
    }
}

impl ResourceLimiter for Guest {
    fn memory_growing(&mut self, _now: usize, wanted: usize, declared_max: Option<usize>) -> wasmtime::Result<bool> {
        let room = &mut self.room;
        let is_granted =
            declared_max.is_none_or(|max| wanted <= max) && wanted as u64 + room.files_bytes <= room.bytes_max;
        if is_granted {
            room.memory_bytes = wanted as u64;
        }
        Ok(is_granted)
    }

    fn table_growing(&mut self, now: usize, wanted: usize, _declared_max: Option<usize>) -> wasmtime::Result<bool> {
        // As on a node: a guest must make do with the table that its module declares.
        Ok(now == 0 || wanted == now)
    }
}

/// Links all imports that a guest may have.
///
/// # Errors
/// wasmtime's, if a name were defined twice.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    linker
        .func_wrap(IMPORT_MODULE, IMPORT_WAIT, || -> wasmtime::Result<i32> {
            Err(Misuse("called pinion.wait".to_owned()).into())
        })?
        .func_wrap(IMPORT_MODULE, IMPORT_WAIT_UNTIL, |_deadline_ns: i64| -> wasmtime::Result<i32> {
            Err(Misuse("called pinion.wait_until".to_owned()).into())
        })?
        .func_wrap(IMPORT_MODULE, IMPORT_YIELD, || ())?
        .func_wrap(IMPORT_MODULE, IMPORT_KEY_SIGN, key_sign)?
        .func_wrap(WASI_MODULE, RANDOM_GET, random_get)?
        .func_wrap(WASI_MODULE, POLL_ONEOFF, poll_oneoff)?
        .func_wrap(NN_MODULE, NN_LOAD_BY_NAME, |mut caller: Caller<'_, Guest>, name: i32, len: i32, graph: i32| {
            at_once(&mut caller, NnCall::LoadByName { name, len, graph })
        })?
        .func_wrap(NN_MODULE, NN_INIT_EXECUTION_CONTEXT, |mut caller: Caller<'_, Guest>, graph: i32, context: i32| {
            at_once(&mut caller, NnCall::InitExecutionContext { graph, context })
        })?
        .func_wrap(NN_MODULE, NN_SET_INPUT, |mut caller: Caller<'_, Guest>, context: i32, index: i32, tensor: i32| {
            at_once(&mut caller, NnCall::set_input(context, index, tensor))
        })?
        .func_wrap(NN_MODULE, NN_GET_OUTPUT, get_output)?
        .func_wrap(NN_MODULE, NN_COMPUTE, |_context: i32| NnErrno::Busy as i32)?;
    calls::define(&mut linker)?;
    Ok(linker)
}

fn get_output(mut caller: Caller<'_, Guest>, context: i32, index: i32, buffer: i32, capacity: i32, size: i32) -> i32 {
    at_once(&mut caller, NnCall::get_output(context, index, buffer, capacity, size))
}

/// Does all of a call. An initialisation has no turns, and ends with its CPU time.
fn at_once(caller: &mut Caller<'_, Guest>, mut call: NnCall) -> i32 {
    loop {
        if let Some(errno) = call.step(caller) {
            return errno;
        }
    }
}

/// Signs nothing: all instances share what an initialisation leaves.
fn key_sign(_: i32, _: i32, _: i32, _: i32, _: i32, _: i32) -> i32 {
    Errno::NotNow.negated()
}

/// Fills memory with random bytes. An initialisation has no turns, and ends with its CPU time.
fn random_get(mut caller: Caller<'_, Guest>, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let mut call = RandomGet::new(ptr, len);
    loop {
        if let Some(errno) = call.step(&mut caller)? {
            return Ok(errno);
        }
    }
}

/// Returns what is due. A sleep is over at once, and moves the clock on, which otherwise stands still.
fn poll_oneoff(
    mut caller: Caller<'_, Guest>,
    subscriptions: i32,
    events: i32,
    count: i32,
    stored: i32,
) -> wasmtime::Result<i32> {
    let call = match PollOneoff::begin(&mut caller, (subscriptions, events, count, stored)) {
        Ok(call) => call,
        Err(errno) => return Ok(errno),
    };
    loop {
        match call.look(&mut caller) {
            Polled::Done(errno) => return Ok(errno),
            Polled::Until { clock_ns } if u128::from(clock_ns - CLOCK_BEGIN_NS) <= INIT_SLEEP_MAX.as_nanos() => {
                caller.data_mut().clock_ns = clock_ns;
            }
            Polled::Until { .. } => {
                let max_ms = INIT_SLEEP_MAX.as_millis();
                let sentence = format!("slept (poll_oneoff) for longer than {max_ms} ms (sleep when it starts)");
                return Err(Misuse(sentence).into());
            }
        }
    }
}

/// Runs a module's initialisation and takes a snapshot. Log lines of the guest go to `say`.
///
/// # Errors
/// Why the module is refused.
pub fn initialise(wasm: &[u8], wishes: &Wishes, say: fn(&BuilderMessage)) -> Result<Initialised, Refused> {
    let mut wizer = Wizer::new();
    wizer.init_func(EXPORT_INIT);
    let (context, becomes) = match wizer.instrument(wasm) {
        Ok(instrumented) => (Ok(instrumented), Becomes::Snapshot),
        Err(error) => (Err(cause(&error)), Becomes::Nothing),
    };
    let engine = engine().map_err(|error| Refused::Invalid(format!("{error:#}")))?;
    let module = Module::from_binary(&engine, context.as_ref().map_or(wasm, |(_, instrumented)| instrumented));
    let module = module.map_err(|error| Refused::of_engine(&error))?;
    progress::compiled();
    let guest = Guest {
        config: Arc::clone(&wishes.config),
        files: wishes.files.clone().map(Files::new),
        room: Room::of(wishes, becomes),
        becomes,
        fields: Arc::clone(&wishes.fields),
        keys: Arc::clone(&wishes.keys),
        models: Arc::clone(&wishes.models),
        say,
        ..Guest::without_configuration()
    };
    let mut store = Store::new(&engine, guest);
    store.limiter(|guest| guest);
    end_after(&mut store, INIT_TIME_MAX);
    let (instance, pool, metrics) = with_epochs(&engine, || run(&module, &mut store))?;
    let context = match context {
        Ok((context, _)) => context,
        Err(reason) => return Ok(Initialised::NotPossible(reason)),
    };
    if let Some(because) = store.data().no_snapshot_because {
        say(&BuilderMessage::Log(LogLevel::Warn, format!("{because}: {WITHOUT_RANDOM_BYTES}")));
        return Ok(Initialised::NotPossible(because.to_owned()));
    }
    let mut state = State { store: &mut store, instance };
    match pin!(wizer.snapshot(&context, &mut state)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(wasm)) => Ok(Initialised::Snapshot { wasm, pool, metrics }),
        Poll::Ready(Err(error)) => Ok(Initialised::NotPossible(cause(&error))),
        Poll::Pending => unreachable!("nothing in it waits"),
    }
}

/// Makes an engine for one short run, with room for one instance as on a node. Its memory reservation is minimal, since address space is
/// limited here. Its compiler is set to compile fast, not to make fast code.
fn engine() -> wasmtime::Result<Engine> {
    let mut config = settings::config();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(settings::pool(1)))
        .memory_reservation(settings::MEMORY_BYTES_MAX as u64)
        .memory_guard_size(64 * 1024)
        .memory_init_cow(false)
        .parallel_compilation(false)
        .cranelift_opt_level(OptLevel::None);
    Engine::new(&config)
}

/// Interrupts the guest at the first new epoch at which this thread has used this much more CPU time.
fn end_after(store: &mut Store<Guest>, time: Duration) {
    let end = thread_time() + time;
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |_| {
        Ok(if thread_time() < end { UpdateDeadline::Continue(1) } else { UpdateDeadline::Interrupt })
    });
}

/// Returns the CPU time of this thread so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `work` while a second thread advances the epoch at intervals.
fn with_epochs<R>(engine: &Engine, work: impl FnOnce() -> R) -> R {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while is_done.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

fn run(module: &Module, store: &mut Store<Guest>) -> Result<(Instance, Pool, Vec<Metric>), Refused> {
    let linker = linker(store.engine()).map_err(|error| Refused::NotInstantiated(cause(&error)))?;
    let instance = match linker.instantiate(&mut *store, module) {
        Ok(instance) => instance,
        Err(error) if error.is::<Trap>() || error.is::<Misuse>() || error.is::<Panicked>() => {
            return Err(ended(store, &error));
        }
        Err(error) => return Err(Refused::NotInstantiated(cause(&error))),
    };
    if let Ok(initialize) = instance.get_typed_func::<(), ()>(&mut *store, EXPORT_INITIALIZE) {
        initialize.call(&mut *store, ()).map_err(|error| ended(store, &error))?;
    }
    let status = call(&instance, store, EXPORT_INIT)?;
    if status != InitStatus::Ready as i32 {
        return Err(Refused::InitRefused { status, last_line: store.data_mut().last_line.take() });
    }
    let address = call(&instance, store, EXPORT_POOL)? as u32;
    if let Some(files) = &store.data().files
        && store.data().becomes == Becomes::Snapshot
    {
        match files.open_count() {
            0 if files.is_as_at_start() => {}
            0 => return Err(Refused::InitStreamsChanged),
            open => return Err(Refused::InitFilesOpen(open)),
        }
    }
    let memory = instance.get_memory(&mut *store, EXPORT_MEMORY).ok_or(Refused::Pool(address))?;
    let pool = read_pool(&memory, store, address).ok_or(Refused::Pool(address))?;
    PoolLayout::check(pool.header(), memory.data_size(&*store)).map_err(Refused::PoolHeader)?;
    let metrics = match instance.get_func(&mut *store, EXPORT_METRICS) {
        Some(_) => {
            let address = call(&instance, store, EXPORT_METRICS)? as u32;
            metrics::read(memory.data(&*store), address, &pool.header())?
        }
        None => Vec::new(),
    };
    Ok((instance, pool, metrics))
}

fn call(instance: &Instance, store: &mut Store<Guest>, name: &str) -> Result<i32, Refused> {
    let function = instance.get_typed_func::<(), i32>(&mut *store, name);
    let function = function.map_err(|error| Refused::NotInstantiated(cause(&error)))?;
    function.call(&mut *store, ()).map_err(|error| ended(store, &error))
}

/// Returns why a call has not returned.
fn ended(store: &mut Store<Guest>, error: &wasmtime::Error) -> Refused {
    if let Some(Misuse(what)) = error.downcast_ref() {
        return Refused::InitMisuse(what.clone());
    }
    if let Some(Panicked(message)) = error.downcast_ref() {
        let Trapped { backtrace, .. } = Trapped::of(error);
        return Refused::InitPanicked { message: message.clone(), backtrace };
    }
    if error.downcast_ref() == Some(&Trap::Interrupt) {
        return Refused::InitTime(INIT_TIME_MAX);
    }
    let Trapped { message, backtrace } = Trapped::of(error);
    Refused::InitTrapped { message, last_line: store.data_mut().last_line.take(), backtrace }
}

fn read_pool(memory: &Memory, store: &Store<Guest>, address: u32) -> Option<Pool> {
    let mut pool = Pool([0; _]);
    let bytes = memory.data(store).get(address as usize..)?.get(..size_of::<Pool>())?;
    for (word, bytes) in pool.0.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(pool)
}

/// An instance, as the snapshot reads it.
struct State<'a> {
    store: &'a mut Store<Guest>,
    instance: Instance,
}

impl InstanceState for State<'_> {
    async fn global_get(&mut self, name: &str, _: ValType) -> SnapshotVal {
        let global = self.instance.get_global(&mut *self.store, name).expect("the instrumented module exports it");
        match global.get(&mut *self.store) {
            Val::I32(value) => SnapshotVal::I32(value),
            Val::I64(value) => SnapshotVal::I64(value),
            Val::F32(value) => SnapshotVal::F32(value),
            Val::F64(value) => SnapshotVal::F64(value),
            Val::V128(value) => SnapshotVal::V128(value.as_u128()),
            _ => unreachable!("modules with mutable globals of other types are not instrumented"),
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        let memory = self.instance.get_memory(&mut *self.store, name).expect("the instrumented module exports it");
        contents(memory.data(&*self.store));
    }
}
