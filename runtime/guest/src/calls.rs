//! The calls that a guest may make in the builder and in a node: logging, clocks, randomness, its configuration, its state ([`state`]), its
//! private keys ([`keys`]), models ([`nn`]), and the WASI functions that libc and std need, including those for files. `wait` and `yield`, which
//! exist only in a node, are defined there,
//! and so are [`RANDOM_GET`] and [`POLL_ONEOFF`], which in a node may take several turns of the guest.
//!
//! Each call takes a time bounded by a constant. An allowance of bytes bounds all calls of one turn together. No call blocks, and none
//! gives a guest anything that its chain was not granted.

pub mod keys;
pub mod nn;
pub mod state;
mod wasi;

use std::sync::Arc;
use std::time::Duration;

use pinion_abi::{
    EXPORT_MEMORY, Errno, IMPORT_CLOCK, IMPORT_CONFIG, IMPORT_KEEP_ALIVE_UNTIL, IMPORT_LOG, IMPORT_MODULE,
    IMPORT_PANIC, IMPORT_RANDOM, LOG_LINE_BYTES_MAX, LogLevel, RANDOM_BYTES_MAX,
};
use pinion_text::{SENTENCE_BYTES_MAX, printable};
use wasmtime::{Caller, Extern, Linker, Memory};

use keys::Keys;
use nn::Graphs;
use state::State;
pub use wasi::poll::{Poll, Polled};
pub use wasi::random::RandomGet;

use crate::files::{Files, Space};
use crate::memory::GuestMemory;

/// The import module of the WASI preview 1 functions that libc and std call.
pub const WASI_MODULE: &str = "wasi_snapshot_preview1";
/// The WASI function that fills memory with random bytes: see [`RandomGet`].
pub const RANDOM_GET: &str = "random_get";
/// The WASI function that waits for files and for time: see [`Poll`].
pub const POLL_ONEOFF: &str = "poll_oneoff";
/// For how long a guest may sleep while it is initialised, in all. Some languages' start-up code sleeps for microseconds; a function that waits
/// for something does that when it starts.
pub const INIT_SLEEP_MAX: Duration = Duration::from_millis(10);

/// What asks for random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// The function itself, through `pinion.random`.
    Function,
    /// Its standard library, through WASI: for the seeds of hash tables, or because the function asked the library.
    Library,
}

/// What a store provides for the calls of its guest.
pub trait Host: Graphs + Send + 'static {
    /// The state granted to the guest's stage.
    type State: State;

    /// Charges a call that moves `bytes`. Returns false if this turn's allowance does not cover it.
    fn charge(&mut self, bytes: u32) -> bool;
    /// Returns whether a call that this turn's allowance does not cover may be made all the same: one in each turn.
    fn overdraw(&mut self) -> bool;
    /// Writes a line to the tenant's log.
    fn log(&mut self, level: LogLevel, line: &[u8]);
    /// Counts a line that is not written.
    fn lose_line(&mut self);
    /// Returns the guest's configuration.
    fn config(&self) -> Arc<[u8]>;
    /// Returns the guest's files and the account to which its changes are charged. Returns none if its stage was deployed without files and
    /// the guest has only read and written the standard streams so far.
    fn files(&mut self) -> Option<(&mut Files, &mut dyn Space)>;
    /// Creates the [`Files`] of a stage without files ([`Files::of_streams`]), if there are none yet. May allocate.
    fn keep_streams(&mut self);
    /// Returns the guest's clock in nanoseconds, in steps of [`Self::clock_step_ns`].
    fn clock_ns(&self) -> u64;
    /// Returns the granularity of that clock, in nanoseconds.
    fn clock_step_ns(&self) -> u64;
    /// Returns the date as the guest sees it: nanoseconds since 1970 in UTC, in steps of [`Self::clock_step_ns`].
    fn wall_clock_ns(&mut self) -> u64;
    /// Asks to keep the guest's instance until `until_ns` of that clock even if it is idle. Returns until when it is kept, or 0 if it is
    /// not.
    fn keep_alive_until(&mut self, until_ns: u64) -> u64;
    /// Fills `bytes` with random bytes.
    ///
    /// # Errors
    /// Returns the error with which the guest must end.
    fn random(&mut self, asks: Asks, bytes: &mut [u8]) -> wasmtime::Result<()>;
    /// Returns the error with which a guest ends that panics; `sentence` is its reason.
    fn panic(sentence: String) -> wasmtime::Error;
    /// Returns the guest's memory, if that is known already: a look-up by name takes longer than most calls.
    fn memory(&self) -> Option<Memory> {
        None
    }
    /// Returns the number of the field of this name, if the guest's stage was granted it.
    fn field(&self, name: &[u8]) -> Option<u32>;
    /// Returns the state granted to the guest's stage.
    ///
    /// # Errors
    /// [`Errno::NotNow`] while the guest is being initialised.
    fn state(&self) -> Result<&Self::State, Errno>;
    /// Calls `work` with the private keys that the guest's stage was granted.
    ///
    /// # Errors
    /// What `work` returns.
    fn with_keys(&self, work: impl FnOnce(&dyn Keys) -> Result<usize, Errno>) -> Result<usize, Errno>
    where
        Self: Sized;
    /// Returns the error with which a guest ends that exits.
    fn exit(status: i32) -> wasmtime::Error;
    /// Yields to other guests.
    fn give_way(caller: &Caller<'_, Self>)
    where
        Self: Sized;
}

/// Defines the calls in a linker.
///
/// # Errors
/// Returns wasmtime's error if a name is defined twice.
pub fn define<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(IMPORT_MODULE, IMPORT_LOG, log::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_CLOCK, |caller: Caller<'_, T>| caller.data().clock_ns() as i64)?
        .func_wrap(IMPORT_MODULE, IMPORT_KEEP_ALIVE_UNTIL, keep_alive_until::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_RANDOM, random::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_CONFIG, config::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_PANIC, panic::<T>)?;
    keys::define(linker)?;
    state::define(linker)?;
    nn::define(linker)?;
    wasi::define(linker)
}

fn log<T: Host>(mut caller: Caller<'_, T>, level: i32, ptr: i32, len: i32) {
    let mut line = [0; LOG_LINE_BYTES_MAX as usize];
    let kept = (len as u32 as usize).min(line.len());
    if !charge_to_the_end(&mut caller, LOG_LINE_BYTES_MAX) {
        caller.data_mut().lose_line();
    } else if read(&mut caller, ptr, &mut line[..kept]).is_some() {
        caller.data_mut().log(LogLevel::from_guest(level), &line[..kept]);
    }
}

/// Charges a call that cannot ask its guest to come again. The turn ends after a call that goes beyond the allowance, at the guest's next
/// loop or function boundary. Returns false for further ones before that boundary.
fn charge_to_the_end<T: Host>(caller: &mut Caller<'_, T>, bytes: u32) -> bool {
    if caller.data_mut().charge(bytes) {
        return true;
    }
    T::give_way(caller);
    caller.data_mut().overdraw()
}

fn keep_alive_until<T: Host>(mut caller: Caller<'_, T>, until_ns: i64) -> i64 {
    caller.data_mut().keep_alive_until(until_ns.max(0) as u64) as i64
}

fn panic<T: Host>(mut caller: Caller<'_, T>, ptr: i32, len: i32) -> wasmtime::Result<()> {
    let mut sentence = [0; LOG_LINE_BYTES_MAX as usize];
    let kept = (len as u32 as usize).min(sentence.len());
    // Not charged to the turn's allowance, because this is the guest's last call.
    let sentence = match read(&mut caller, ptr, &mut sentence[..kept]) {
        Some(()) => printable(&sentence[..kept], SENTENCE_BYTES_MAX),
        None => "and its words are outside its memory".to_owned(),
    };
    Err(T::panic(sentence))
}

fn random<T: Host>(mut caller: Caller<'_, T>, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let len = len as u32;
    if len > RANDOM_BYTES_MAX || !caller.data_mut().charge(len) {
        return Ok(Errno::TooLong as i32);
    }
    Ok(fill_random(&mut caller, Asks::Function, ptr, len)?.map_or(Errno::Fault, |()| Errno::Ok) as i32)
}

/// Fills guest memory with at most [`RANDOM_BYTES_MAX`] random bytes; none if the range is not within it.
fn fill_random<T: Host>(caller: &mut Caller<'_, T>, asks: Asks, ptr: i32, len: u32) -> wasmtime::Result<Option<()>> {
    let mut bytes = [0; RANDOM_BYTES_MAX as usize];
    let bytes = &mut bytes[..len as usize];
    caller.data_mut().random(asks, bytes)?;
    Ok(write(caller, ptr, bytes))
}

fn config<T: Host>(mut caller: Caller<'_, T>, ptr: i32, capacity: i32) -> i32 {
    let config = caller.data().config();
    let fits = config.len().min(capacity as u32 as usize);
    if !charge_to_the_end(&mut caller, fits as u32) {
        return 0;
    }
    match write(&mut caller, ptr, &config[..fits]) {
        Some(()) => config.len() as i32,
        None => 0,
    }
}

#[inline]
fn memory<T: Host>(caller: &mut Caller<'_, T>) -> Option<Memory> {
    caller.data().memory().or_else(|| match caller.get_export(EXPORT_MEMORY) {
        Some(Extern::Memory(memory)) => Some(memory),
        _ => None,
    })
}

/// Copies from guest memory; none if the range is not within it.
fn read<T: Host>(caller: &mut Caller<'_, T>, ptr: i32, bytes: &mut [u8]) -> Option<()> {
    let memory = memory(caller)?;
    GuestMemory::with(caller, memory, |memory, _| memory.read(ptr, bytes))
}

/// Returns whether a range is within guest memory.
fn has<T: Host>(caller: &mut Caller<'_, T>, ptr: i32, len: u64) -> bool {
    let Some(memory) = memory(caller) else { return false };
    usize::try_from(len).is_ok_and(|len| GuestMemory::with(caller, memory, |memory, _| memory.has(ptr, len)))
}

/// Copies into guest memory; none if the range is not within it.
fn write<T: Host>(caller: &mut Caller<'_, T>, ptr: i32, bytes: &[u8]) -> Option<()> {
    let memory = memory(caller)?;
    GuestMemory::with(caller, memory, |memory, _| memory.write(ptr, bytes))
}
