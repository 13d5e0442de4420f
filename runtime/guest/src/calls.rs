//! What a guest may call wherever it runs: logging, clock, randomness, its configuration, its state ([`state`]), and the WASI functions
//! that libc and std need, those for files among them. What only exists in a node, `wait` and `yield`, is the node's.
//!
//! Each call is bounded in time by a constant, and all of one turn together by an allowance of bytes; none blocks, and none
//! gives a guest anything that its chain was not granted.

pub mod state;
mod wasi;

use std::sync::Arc;

use pinion_abi::{
    EXPORT_MEMORY, Errno, IMPORT_CLOCK, IMPORT_CONFIG, IMPORT_LOG, IMPORT_MODULE, IMPORT_PANIC, IMPORT_RANDOM,
    LOG_LINE_BYTES_MAX, LogLevel, RANDOM_BYTES_MAX,
};
use wasmtime::{Caller, Extern, Linker, Memory};

use state::State;

use crate::files::{Files, Space};

use crate::fault::escaped;

/// The import module of the WASI preview 1 functions that libc and std call.
pub const WASI_MODULE: &str = "wasi_snapshot_preview1";

/// Who asks for random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// The function itself, by `pinion.random`.
    Function,
    /// Its standard library, for the seeds of its hash tables, by WASI.
    Library,
}

/// What a store holds for the calls.
pub trait Host: Send + 'static {
    /// What its stage was granted.
    type State: State;

    /// Charges a call that moves so many bytes; false if this turn's allowance does not cover it.
    fn charge(&mut self, bytes: u32) -> bool;
    /// Takes a line for the tenant's log.
    fn log(&mut self, level: LogLevel, line: &[u8]);
    /// The configuration.
    fn config(&self) -> Arc<[u8]>;
    /// Its files, and what its changes of them are charged to; none if its stage was deployed without.
    fn files(&mut self) -> Option<(&mut Files, &mut dyn Space)>;
    /// Nanoseconds of the guest's clock, in steps of [`pinion_abi::CLOCK_STEP_NS`].
    fn clock_ns(&self) -> u64;
    /// Fills the bytes, or says why the guest is to end.
    ///
    /// # Errors
    /// What the guest ends with.
    fn random(&mut self, asks: Asks, bytes: &mut [u8]) -> wasmtime::Result<()>;
    /// What a guest ends with that gives up, and says why.
    fn panic(sentence: String) -> wasmtime::Error;
    /// Its memory, if that is known already: to look it up by its name takes longer than most calls.
    fn memory(&self) -> Option<Memory> {
        None
    }
    /// The number of the field of this name that its stage was granted.
    fn field(&self, name: &[u8]) -> Option<u32>;
    /// The state that its stage was granted.
    ///
    /// # Errors
    /// [`Errno::NotNow`] while it is initialised.
    fn state(&self) -> Result<&Self::State, Errno>;
    /// What a guest ends with that exits.
    fn exit(status: i32) -> wasmtime::Error;
    /// Lets others run.
    fn give_way(caller: &Caller<'_, Self>)
    where
        Self: Sized;
}

/// Joins the calls to a store's host.
///
/// # Errors
/// wasmtime's, if a name were defined twice.
pub fn define<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(IMPORT_MODULE, IMPORT_LOG, log::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_CLOCK, |caller: Caller<'_, T>| caller.data().clock_ns() as i64)?
        .func_wrap(IMPORT_MODULE, IMPORT_RANDOM, random::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_CONFIG, config::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_PANIC, panic::<T>)?;
    state::define(linker)?;
    wasi::define(linker)
}

fn log<T: Host>(mut caller: Caller<'_, T>, level: i32, ptr: i32, len: i32) {
    let mut line = [0; LOG_LINE_BYTES_MAX as usize];
    let kept = (len as u32 as usize).min(line.len());
    if caller.data_mut().charge(LOG_LINE_BYTES_MAX) && read(&mut caller, ptr, &mut line[..kept]).is_some() {
        caller.data_mut().log(LogLevel::from_guest(level), &line[..kept]);
    }
}

fn panic<T: Host>(mut caller: Caller<'_, T>, ptr: i32, len: i32) -> wasmtime::Result<()> {
    let mut sentence = [0; LOG_LINE_BYTES_MAX as usize];
    let kept = (len as u32 as usize).min(sentence.len());
    // Whatever it has used of its turn: it is its last call.
    let sentence = match read(&mut caller, ptr, &mut sentence[..kept]) {
        Some(()) => escaped(&sentence[..kept]),
        None => "and its words are outside its memory".to_owned(),
    };
    Err(T::panic(sentence))
}

fn random<T: Host>(mut caller: Caller<'_, T>, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    Ok(fill_random(&mut caller, Asks::Function, ptr, len)? as i32)
}

/// Fills guest memory with random bytes.
fn fill_random<T: Host>(caller: &mut Caller<'_, T>, asks: Asks, ptr: i32, len: i32) -> wasmtime::Result<Errno> {
    let len = len as u32;
    if len > RANDOM_BYTES_MAX || !caller.data_mut().charge(len) {
        return Ok(Errno::TooLong);
    }
    let mut bytes = [0; RANDOM_BYTES_MAX as usize];
    let bytes = &mut bytes[..len as usize];
    caller.data_mut().random(asks, bytes)?;
    Ok(write(caller, ptr, bytes).map_or(Errno::Fault, |()| Errno::Ok))
}

fn config<T: Host>(mut caller: Caller<'_, T>, ptr: i32, capacity: i32) -> i32 {
    let config = caller.data().config();
    let fits = config.len().min(capacity as u32 as usize);
    if !caller.data_mut().charge(fits as u32) {
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

/// Copies out of guest memory; none if the range is not in it.
fn read<T: Host>(caller: &mut Caller<'_, T>, ptr: i32, bytes: &mut [u8]) -> Option<()> {
    memory(caller)?.read(&*caller, ptr as u32 as usize, bytes).ok()
}

/// Copies into guest memory; none if the range is not in it.
fn write<T: Host>(caller: &mut Caller<'_, T>, ptr: i32, bytes: &[u8]) -> Option<()> {
    memory(caller)?.write(&mut *caller, ptr as u32 as usize, bytes).ok()
}
