//! A module's initialisation, run once with its configuration, and the snapshot of what it leaves behind.
//!
//! ```text
//!   module --wizer--> instrumented module --instantiate, _initialize, pinion_init, pinion_pool, pinion_metrics--> instance
//!                                                     snapshot of memory and globals <---------------'
//!                                                                  `--wizer--> module that starts there
//! ```
//!
//! Every instance of every client starts from the snapshot, so nothing secret may be in it: the function gets no random
//! bytes of its own here, and finds a clock that stands still. Its library's hash tables do get a seed. It reads its files, and can't
//! change them: what it wrote would be in no instance, nor would what it left open.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use pinion_abi::{
    EXPORT_INIT, EXPORT_INITIALIZE, EXPORT_MEMORY, EXPORT_METRICS, EXPORT_POOL, Errno, IMPORT_MODULE, IMPORT_WAIT,
    IMPORT_WAIT_UNTIL, IMPORT_YIELD, InitStatus, LogLevel,
};
use pinion_builder_client::metrics::{self, Metric};
use pinion_builder_client::protocol::{Pool, Said};
use pinion_guest::calls::state::NoState;
use pinion_guest::calls::{self, Asks, Host};
use pinion_guest::fault::{Trapped, cause, escaped};
use pinion_guest::files::{Bundle, Files, Space};
use pinion_guest::settings;
use wasmtime::{Caller, Engine, Instance, Linker, Memory, Module, OptLevel, ResourceLimiter, Store, Trap, Val};
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

use crate::refused::Refused;

/// How long a module's initialisation may take.
pub const INIT_TIME_MAX: Duration = Duration::from_secs(2);

/// Lines that a guest may log meanwhile; of the others the last one is kept.
const LINES_MAX: usize = 100;
/// Elements that a table may have: nothing of it is kept.
const TABLE_ELEMENTS_MAX: usize = 64 * 1024;

/// What a snapshot is made with.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The configuration.
    pub config: Arc<[u8]>,
    /// The files that it finds, if it has a file system.
    pub files: Option<Arc<Bundle>>,
    /// Linear memory that the guest may have, in bytes.
    pub memory_bytes_max: u64,
    /// The fields of state that its stage was granted, by their numbers.
    pub fields: Arc<[String]>,
}

/// What came of it.
#[derive(Debug)]
pub enum Initialised {
    /// A module that starts where the initialisation ended, and where its pool is.
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
    nothing: NoSpace,
    memory_bytes_max: u64,
    fields: Arc<[String]>,
    say: fn(&Said),
    lines: usize,
    last_line: Option<String>,
}

impl Guest {
    /// For a store in which nothing runs.
    pub(crate) fn nobody() -> Self {
        Self {
            config: Arc::new([]),
            files: None,
            nothing: NoSpace,
            memory_bytes_max: 0,
            fields: Arc::new([]),
            say: |_| (),
            lines: 0,
            last_line: None,
        }
    }
}

/// Nothing is written while a guest is initialised, so nothing is to be had for it.
struct NoSpace;

impl Space for NoSpace {
    fn resize(&mut self, _bytes: u64) -> bool {
        false
    }
}

/// What a call makes the guest end with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// What a guest says that gives up.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Panicked(String);

impl Host for Guest {
    type State = NoState;

    fn charge(&mut self, _bytes: u32) -> bool {
        true
    }

    fn log(&mut self, level: LogLevel, line: &[u8]) {
        let line = escaped(line);
        self.lines += 1;
        if self.lines <= LINES_MAX {
            (self.say)(&Said::Log(level, line.clone()));
        }
        self.last_line = Some(line);
    }

    fn config(&self) -> Arc<[u8]> {
        Arc::clone(&self.config)
    }

    fn files(&mut self) -> Option<(&mut Files, &mut dyn Space)> {
        Some((self.files.as_mut()?, &mut self.nothing))
    }

    fn clock_ns(&self) -> u64 {
        0
    }

    fn random(&mut self, asks: Asks, bytes: &mut [u8]) -> wasmtime::Result<()> {
        match asks {
            Asks::Library => {
                getrandom::fill(bytes).map_err(|error| Misuse(format!("found no randomness ({error})")).into())
            }
            Asks::Function => {
                let sentence = "asked for random bytes, which every instance would share (ask when it starts),";
                Err(Misuse(sentence.to_owned()).into())
            }
        }
    }

    fn field(&self, name: &[u8]) -> Option<u32> {
        self.fields.iter().position(|field| field.as_bytes() == name).map(|number| number as u32)
    }

    fn state(&self) -> Result<&NoState, Errno> {
        Err(Errno::NotNow)
    }

    fn panic(sentence: String) -> wasmtime::Error {
        Panicked(sentence).into()
    }

    fn exit(status: i32) -> wasmtime::Error {
        Misuse(format!("exited with status {status}")).into()
    }

    fn give_way(_: &Caller<'_, Self>) {}
}

impl ResourceLimiter for Guest {
    fn memory_growing(&mut self, _now: usize, wanted: usize, _declared_max: Option<usize>) -> wasmtime::Result<bool> {
        Ok(wanted as u64 <= self.memory_bytes_max)
    }

    fn table_growing(&mut self, _now: usize, wanted: usize, _declared_max: Option<usize>) -> wasmtime::Result<bool> {
        Ok(wanted <= TABLE_ELEMENTS_MAX)
    }
}

/// All that a guest may import.
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
        .func_wrap(IMPORT_MODULE, IMPORT_YIELD, || ())?;
    calls::define(&mut linker)?;
    Ok(linker)
}

/// Runs a module's initialisation and takes a snapshot. What the guest logs meanwhile goes to `say`.
///
/// # Errors
/// Why the module is refused.
pub fn initialise(wasm: &[u8], wishes: &Wishes, say: fn(&Said)) -> Result<Initialised, Refused> {
    let mut wizer = Wizer::new();
    wizer.init_func(EXPORT_INIT);
    let (context, instrumented) = match wizer.instrument(wasm) {
        Ok(instrumented) => instrumented,
        Err(error) => return Ok(Initialised::NotPossible(error.root_cause().to_string())),
    };
    let engine = engine().map_err(|error| Refused::Invalid(format!("{error:#}")))?;
    let module = Module::from_binary(&engine, &instrumented).map_err(|error| Refused::Invalid(format!("{error:#}")))?;
    let guest = Guest {
        config: Arc::clone(&wishes.config),
        files: wishes.files.clone().map(Files::new),
        memory_bytes_max: wishes.memory_bytes_max,
        fields: Arc::clone(&wishes.fields),
        say,
        ..Guest::nobody()
    };
    let mut store = Store::new(&engine, guest);
    store.limiter(|guest| guest);
    store.set_epoch_deadline(1);
    let (instance, pool, metrics) = within(&engine, INIT_TIME_MAX, || run(&module, &mut store))?;
    let mut state = State { store: &mut store, instance };
    match pin!(wizer.snapshot(&context, &mut state)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(wasm)) => Ok(Initialised::Snapshot { wasm, pool, metrics }),
        Poll::Ready(Err(error)) => Ok(Initialised::NotPossible(error.root_cause().to_string())),
        Poll::Pending => unreachable!("nothing in it waits"),
    }
}

/// An engine for one short run: its memories may move, so that none needs 4 GiB of address space, and its code is not to be
/// fast but soon there.
fn engine() -> wasmtime::Result<Engine> {
    let mut config = settings::config();
    config
        .memory_may_move(true)
        .memory_reservation(0)
        .memory_guard_size(64 * 1024)
        .memory_init_cow(false)
        .cranelift_opt_level(OptLevel::None);
    Engine::new(&config)
}

/// Does something that the engine's epoch ends when its time is over.
fn within<R>(engine: &Engine, time: Duration, work: impl FnOnce() -> R) -> R {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
            // Until the work has ended, whatever it does when it is interrupted.
            let _ = is_done.recv();
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
    match store.data().files.as_ref().map_or(0, Files::open_count) {
        0 => {}
        open => return Err(Refused::InitFilesOpen(open)),
    }
    let memory = instance.get_memory(&mut *store, EXPORT_MEMORY).ok_or(Refused::Pool(address))?;
    let pool = read_pool(&memory, store, address).ok_or(Refused::Pool(address))?;
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

/// Why a call has not returned.
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

/// An instance as the snapshot reads it.
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
