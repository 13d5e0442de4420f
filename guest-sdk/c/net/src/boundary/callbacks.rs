//! The C function's callbacks, as `pinion/net.h` declares them, and safe functions that call them.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use pinion_abi::Descriptor;
use pinion_sdk::{InitError, net};

use crate::results::Outcome;
use crate::types::{Address, Datagram, Settings};

/// `init` of both forms.
type Init = unsafe extern "C" fn(config: *const u8, len: usize, settings: *mut Settings) -> c_int;
/// `packet` is called by way of this, which fills in C's record of it.
type Deliver = unsafe extern "C" fn(received: *const Descriptor, slot: *mut u8);

/// `struct pinion_service`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct ServiceCallbacks {
    pub init: Option<Init>,
    pub start: Option<unsafe extern "C" fn()>,
    pub accept: Option<unsafe extern "C" fn(stream: u64) -> *mut c_void>,
    pub connected: Option<unsafe extern "C" fn(stream: u64) -> *mut c_void>,
    pub connect_failed: Option<unsafe extern "C" fn(stream: u64, error: Outcome)>,
    pub ready: Option<unsafe extern "C" fn(stream: u64, connection: *mut c_void)>,
    pub ended: Option<unsafe extern "C" fn(connection: *mut c_void)>,
    pub datagram: Option<unsafe extern "C" fn(datagram: *const Datagram)>,
    pub flow: Option<unsafe extern "C" fn(flow: u64, news: Outcome, is_over: bool)>,
    pub resolved: Option<unsafe extern "C" fn(lookup: u64, result: Outcome, addresses: *const Address, count: usize)>,
    /// Only whether it is set counts here.
    pub packet: Option<unsafe extern "C" fn(packet: *mut c_void)>,
    pub expire: Option<unsafe extern "C" fn()>,
}

/// `struct pinion_program`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct ProgramCallbacks {
    pub init: Option<Init>,
    /// Only whether it is set counts here.
    pub packet: Option<unsafe extern "C" fn(packet: *mut c_void)>,
    pub run: Option<unsafe extern "C" fn()>,
}

/// `struct pinion_net_module_`: one of the two is set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Module {
    pub service: Option<&'static ServiceCallbacks>,
    pub program: Option<&'static ProgramCallbacks>,
    pub deliver: Option<Deliver>,
}

thread_local! {
    static MODULE: Cell<Module> = const { Cell::new(Module { service: None, program: None, deliver: None }) };
    static WAKE_TIME: Cell<Option<u64>> = const { Cell::new(None) };
    static IS_REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Sets whose callbacks are called from now on in this thread.
pub fn install(module: Module) {
    MODULE.set(module);
}

/// Returns whether the function is a service, rather than a program.
pub(super) fn is_service() -> bool {
    MODULE.get().service.is_some()
}

fn service() -> ServiceCallbacks {
    MODULE.get().service.copied().unwrap_or_default()
}

/// The state of one connection, which C is given back once the connection is over, unless it is `NULL`.
#[derive(Debug)]
pub struct State(*mut c_void);

impl Drop for State {
    fn drop(&mut self) {
        if let Some(ended) = service().ended.filter(|_| !self.0.is_null()) {
            // SAFETY: a callback of the header's type, with the state that C has returned, once.
            unsafe { ended(self.0) }
        }
    }
}

/// Calls `init`, by which C says ports and limits.
pub(crate) fn init(config: &[u8]) -> Result<net::Settings, InitError> {
    let Module { service, program, .. } = MODULE.get();
    if program.is_some_and(|program| program.run.is_none()) {
        return Err("a program has .run, and this has none".into());
    }
    let mut settings = Settings::default();
    let init = service.map_or_else(|| program.and_then(|program| program.init), |service| service.init);
    IS_REFUSED.set(false);
    match init {
        Some(init) => {
            // C reads it as a text, and may keep it: it is part of the snapshot.
            let text: &'static [u8] = [config, &[0]].concat().leak();
            // SAFETY: a callback of the header's type, with so many bytes and a zero that stay, and settings for C to write to.
            let refused = unsafe { init(text.as_ptr(), config.len(), &raw mut settings) };
            if refused != 0 {
                IS_REFUSED.set(true);
                return Err("the function has refused its configuration".into());
            }
        }
        None if config.is_empty() => {}
        None => {
            let bytes = config.len();
            return Err(InitError::new(format!("this function has no configuration, but was given {bytes} bytes")));
        }
    }
    settings.settings()
}

/// Returns whether C has refused the configuration, and so has logged why.
#[cfg(target_family = "wasm")]
pub(super) fn is_refused() -> bool {
    IS_REFUSED.get()
}

pub(crate) fn start() {
    // A request from before the snapshot would count in every instance.
    WAKE_TIME.set(None);
    if let Some(start) = service().start {
        // SAFETY: a callback of the header's type.
        unsafe { start() }
    }
}

pub(crate) fn run() {
    if let Some(run) = MODULE.get().program.and_then(|program| program.run) {
        // SAFETY: a callback of the header's type.
        unsafe { run() }
    }
}

/// Returns the state that `accept` returns, or none.
pub(crate) fn accept(stream: u64) -> State {
    // SAFETY: a callback of the header's type.
    State(service().accept.map_or(ptr::null_mut(), |accept| unsafe { accept(stream) }))
}

/// Returns the state that `connected` returns. `None` if there is no such callback.
pub(crate) fn connected(stream: u64) -> Option<State> {
    // SAFETY: a callback of the header's type.
    service().connected.map(|connected| State(unsafe { connected(stream) }))
}

pub(crate) fn connect_failed(stream: u64, error: Outcome) {
    if let Some(connect_failed) = service().connect_failed {
        // SAFETY: a callback of the header's type.
        unsafe { connect_failed(stream, error) }
    }
}

/// Returns whether there is a callback for connections.
pub(crate) fn ready(stream: u64, connection: &State) -> bool {
    let Some(ready) = service().ready else { return false };
    // SAFETY: a callback of the header's type, with the state that C has returned.
    unsafe { ready(stream, connection.0) }
    true
}

pub(crate) fn datagram(described: &Datagram) {
    if let Some(datagram) = service().datagram {
        // SAFETY: a callback of the header's type, with a datagram that is there until it returns.
        unsafe { datagram(described) }
    }
}

pub(crate) fn flow(number: u64, news: Outcome, is_over: bool) {
    if let Some(flow) = service().flow {
        // SAFETY: a callback of the header's type.
        unsafe { flow(number, news, is_over) }
    }
}

pub(crate) fn resolved(lookup: u64, result: Outcome, addresses: &[Address]) {
    if let Some(resolved) = service().resolved {
        // SAFETY: a callback of the header's type, with so many addresses that are there until it returns.
        unsafe { resolved(lookup, result, addresses.as_ptr(), addresses.len()) }
    }
}

/// Returns whether there is a callback for packets.
pub(crate) fn has_packet() -> bool {
    let Module { service, program, .. } = MODULE.get();
    service.is_some_and(|service| service.packet.is_some()) || program.is_some_and(|program| program.packet.is_some())
}

/// Calls C with a packet, of which it makes a record for its `packet`.
pub(crate) fn deliver(received: &Descriptor, slot: *mut u8) {
    if let Some(deliver) = MODULE.get().deliver {
        // SAFETY: a function of the header's type, with the bytes of a slot to which Rust has no reference until C sends or drops it.
        unsafe { deliver(received, slot) }
    }
}

pub(crate) fn expire() {
    if let Some(expire) = service().expire {
        // SAFETY: a callback of the header's type.
        unsafe { expire() }
    }
}

/// Returns the time of `pinion_wake_at`.
pub(crate) fn wake_time() -> Option<u64> {
    WAKE_TIME.get()
}

pub(crate) fn set_wake_time(time_ns: Option<u64>) {
    WAKE_TIME.set(time_ns);
}

const _: () = assert!(size_of::<Option<NonNull<u8>>>() == size_of::<Option<Init>>(), "a missing callback is NULL");
