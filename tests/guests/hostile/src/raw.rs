//! The contract without the SDK's checks: rings into which any value can be written. Shared by guests that break the rules on purpose. It
//! is also a second, independent implementation of the contract.

#![allow(unsafe_code)] // the boundary to the host

use core::cell::Cell;

use pinion_abi::{Descriptor, LogLevel, POOL_MAGIC, PoolHeader};

/// Slots of the pool, and entries of its rings.
pub const SLOT_COUNT: u16 = 64;
/// The slot of the guest's own.
pub const OWN_SLOT: u16 = SLOT_COUNT - 1;
/// Bytes of a slot.
pub const SLOT_SIZE: u16 = 2048;

mod imports {
    #[link(wasm_import_module = "pinion")]
    unsafe extern "C" {
        pub(super) safe fn wait() -> i32;
        pub(super) fn log(level: i32, text: *const u8, len: usize);
        pub(super) fn config(buffer: *mut u8, capacity: usize) -> i32;
    }

    unsafe extern "C" {
        pub(super) fn __wasm_call_ctors();
    }
}

/// Exchanges rings with the host.
pub fn wait() -> u32 {
    u32::try_from(imports::wait()).unwrap_or(0)
}

/// Logs bytes that need not be valid UTF-8.
pub fn log(level: LogLevel, line: &[u8]) {
    // SAFETY: the host reads `len` bytes at `text` during the call.
    unsafe { imports::log(level as i32, line.as_ptr(), line.len()) }
}

/// Returns the start of the configuration.
#[must_use]
pub fn config(buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the host writes at most `capacity` bytes at `buffer` during the call.
    let len = unsafe { imports::config(buffer.as_mut_ptr(), buffer.len()) };
    let len = usize::try_from(len).unwrap_or(0).min(buffer.len());
    &buffer[..len]
}

/// Runs the module's constructors; for `_initialize`.
pub fn initialize() {
    // SAFETY: the linker's function takes and returns nothing, and is called once.
    unsafe { imports::__wasm_call_ctors() }
}

#[repr(C, align(16))]
struct Ring {
    head: Cell<u32>,
    tail: Cell<u32>,
    reserved: [u32; 2],
    entries: [Cell<Descriptor>; SLOT_COUNT as usize],
}

impl Ring {
    const fn new() -> Self {
        const EMPTY: Descriptor = Descriptor { slot: 0, offset: 0, len: 0, port: 0, flags: 0, way: 0, arrived: 0 };
        Self {
            head: Cell::new(0),
            tail: Cell::new(0),
            reserved: [0; 2],
            entries: [const { Cell::new(EMPTY) }; SLOT_COUNT as usize],
        }
    }

    fn entry(&self, index: u32) -> &Cell<Descriptor> {
        &self.entries[index as usize % usize::from(SLOT_COUNT)]
    }
}

#[repr(C, align(64))]
struct Slot(Cell<[u8; SLOT_SIZE as usize]>);

/// A pool whose slots stay unread.
#[repr(C)]
pub struct Pool {
    header: Cell<PoolHeader>,
    rx: Ring,
    tx: Ring,
    slots: [Slot; SLOT_COUNT as usize],
}

impl Pool {
    /// Makes a pool with all bytes zero.
    #[must_use]
    pub const fn new() -> Self {
        const BLANK: PoolHeader = PoolHeader {
            magic: 0,
            slot_count: 0,
            slot_size: 0,
            slots: 0,
            ring_entries: 0,
            rx_ring: 0,
            tx_ring: 0,
            own_slots: 0,
        };
        Self {
            header: Cell::new(BLANK),
            rx: Ring::new(),
            tx: Ring::new(),
            slots: [const { Slot(Cell::new([0; SLOT_SIZE as usize])) }; SLOT_COUNT as usize],
        }
    }

    /// Fills in the header; returns its address.
    pub fn publish(&self) -> u32 {
        fn address<T>(place: &T) -> u32 {
            core::ptr::from_ref(place).expose_provenance() as u32
        }
        self.header.set(PoolHeader {
            magic: POOL_MAGIC,
            slot_count: SLOT_COUNT.into(),
            slot_size: SLOT_SIZE.into(),
            slots: address(&self.slots),
            ring_entries: SLOT_COUNT.into(),
            rx_ring: address(&self.rx),
            tx_ring: address(&self.tx),
            own_slots: 1,
        });
        address(self)
    }

    /// Returns the next descriptor that the host has published.
    pub fn receive(&self) -> Option<Descriptor> {
        let head = self.rx.head.get();
        (head != self.rx.tail.get()).then(|| {
            self.rx.head.set(head.wrapping_add(1));
            self.rx.entry(head).get()
        })
    }

    /// Puts any descriptor into the transmit ring.
    pub fn transmit(&self, descriptor: Descriptor) {
        self.tx.entry(self.tx.tail.get()).set(descriptor);
        self.move_tail(1);
    }

    /// Moves the transmit ring's tail without an entry.
    pub fn move_tail(&self, by: u32) {
        self.tx.tail.set(self.tx.tail.get().wrapping_add(by));
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

/// The exports of a guest with a [`Pool`]: `init` is a `fn() -> InitStatus`, `run` a `fn(&Pool)`.
#[macro_export]
macro_rules! export_raw {
    (init = $init:path, run = $run:path) => {
        const _: () = {
            ::std::thread_local! {
                static POOL: $crate::raw::Pool = const { $crate::raw::Pool::new() };
            }

            #[unsafe(export_name = "_initialize")]
            extern "C" fn exported_initialize() {
                $crate::raw::initialize();
            }

            #[unsafe(export_name = "pinion_abi_v3")]
            extern "C" fn exported_abi_v3() {}

            #[unsafe(export_name = "pinion_init")]
            extern "C" fn exported_init() -> i32 {
                $init() as i32
            }

            #[unsafe(export_name = "pinion_pool")]
            extern "C" fn exported_pool() -> u32 {
                POOL.with($crate::raw::Pool::publish)
            }

            #[unsafe(export_name = "pinion_run")]
            extern "C" fn exported_run() {
                POOL.with($run);
            }
        };
    };
}
