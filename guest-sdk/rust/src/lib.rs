//! The SDK for Pinion functions in Rust.
//!
//! A function is a type that implements [`Function`]: it is prepared once from its configuration and then gets packets in batches.
//! [`export!`] makes a Wasm module of it. Each packet lies in a slot of the module's own memory and is read and changed in place. The
//! function decides about each packet by [`Packet::send`] (on along the chain), [`Packet::reply`] (back to its ingress port) or
//! [`Packet::discard`]. A packet that goes out of scope without any of these is dropped, so no slot is ever lost.
//!
//! Other needs have other interfaces:
//!
//! * A function that handles each packet by itself implements [`PacketFunction`] instead.
//! * A function that waits for a time as well as for packets returns it from [`Function::deadline_ns`], and keeps packets for later
//!   ([`Packet::hold`]).
//! * A function that decides by ports has the later fragments of a datagram follow the first one, which has them ([`fragments`]).
//! * A function that makes packets itself states how many slots they may take ([`Function::OWN_SLOTS`]).
//! * A function that is best written as a loop with waits implements [`Looping`].
//!
//! The node shows what a function counts ([`metrics`]) and what it logs ([`log`]). A panic's message and location appear in the report of
//! its instance's end.
//!
//! ```
//! use pinion_sdk::{Batch, Function, InitError};
//!
//! /// Passes frames of one EtherType.
//! struct OnlyType([u8; 2]);
//!
//! impl Function for OnlyType {
//!     fn init(config: &[u8]) -> Result<Self, InitError> {
//!         let wanted = config.try_into().map_err(|_| InitError::new("the configuration must be two bytes"))?;
//!         Ok(Self(wanted))
//!     }
//!
//!     fn handle(&mut self, batch: Batch<'_>) {
//!         for packet in batch {
//!             if packet.data().get(12..14) == Some(&self.0) {
//!                 packet.send();
//!             }
//!         }
//!     }
//! }
//!
//! pinion_sdk::export!(OnlyType);
//!
//! // The same code runs natively in tests:
//! use pinion_sdk::testing::{Harness, Outcome};
//! let mut harness = Harness::<OnlyType>::new(&[0x08, 0x00]).unwrap();
//! let mut frame = [0_u8; 60];
//! frame[12] = 0x08;
//! let verdicts = harness.deliver(&[&frame, &[0; 60]]);
//! assert_eq!(verdicts[0].outcome, Outcome::Sent);
//! assert_eq!(verdicts[1].outcome, Outcome::Dropped);
//! ```
//!
//! Build with `cargo build --release --target wasm32-wasip1` and `crate-type = ["cdylib"]`, best with
//! `panic = "abort"` and `lto = "fat"` in the profile.
//!
//! # Files
//!
//! A stage of a chain can have a folder of files: `stage = [{ module = "site", files = "pages" }]`. The standard library finds them under `/`:
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! let page = std::fs::read("/index.html")?;
//! let routes = std::fs::read_to_string("routes.txt")?; // relative to /, too
//! # drop((page, routes));
//! # Ok(())
//! # }
//! ```
//!
//! [`Function::init`] finds them as well, so that tables built from them are part of the snapshot that instances start from. It cannot
//! change them (`ErrorKind::ReadOnlyFilesystem`), and must leave no file open, or the chain is refused. An instance may write, create and
//! remove files. No other instance sees its changes. They count as the instance's memory (`ErrorKind::StorageFull` when there is no more),
//! and are lost with it. At most 64 files are open at a time. Files have no times. Reading takes time of the function's turn, as a copy
//! does, so keep data that each packet needs in memory. In native tests paths refer to the machine's file system, so let a test give the
//! folder's path.
//!
//! # Modules
//!
//! ```text
//!   packets           what the node hands over, and what it gets back
//!     packet.rs       Packet                    a view of a slot, and the verdict on it
//!     batch.rs        Batch                     a function's input
//!     slots.rs        Slots                     access to packets that are held or made
//!     held.rs         Held                      packets that are kept for a later batch
//!     message.rs      Message                   packets by which a client calls the function
//!     headers.rs      Headers, Ip, FlowKey      reads a frame's headers and changes them
//!     checksum.rs     of, update                the Internet checksum
//!     outbound.rs     Request, Flow, Event      flows that a function opens itself
//!     pool.rs         PoolMemory, Pool          slots and rings in static memory; owns `unsafe` for slots
//!   host              what a function asks of the node
//!     clock.rs        now_ns                    the node's clock
//!     random.rs       fill                      random bytes, fit for keys
//!     log.rs          error, warn, info, debug  lines for the tenant's log
//!     metrics.rs      Counter, Gauge            metrics that the node shows
//!     nn.rs           Model, Tensor             neural networks that the node runs
//!     keys.rs         Key                       handshakes of TLS that the node signs, session tickets
//!     state.rs        Field                     data that outlives an instance, or that instances share
//!     alive.rs        keep_alive_until          keeps an instance that gets no packets
//!     finish.rs       finish                    ends the instance
//!     finished.rs     the flag that it sets     beside the pool under Wasm; owns `unsafe` for its place
//!     calls.rs        the node's calls          imports under Wasm, a fake elsewhere; owns `unsafe` for imports
//!   functions         what a function is, and how it runs
//!     function.rs     Function, PacketFunction  the traits that a function implements
//!     looping.rs      Looping, Io               functions with a loop of their own
//!     guest.rs        init, run                 the exported entry points
//!   tables            what a function keeps about flows, by the feature `tables`
//!     table.rs        Table                     a bounded table of flows, with expiry
//!     lru.rs          Lru                       the same, with eviction chosen by the function
//!     fragments.rs    Fragments                 datagrams in fragments, in whatever order these come
//!   config.rs         parse                     configurations with names and types, by the feature `config`
//!   net.rs            Server, Program           sockets: connections and datagrams, by the feature `net`
//!   foreign.rs        numbers and slots           for SDKs of other languages that are built on this one
//!   testing.rs        Harness, LoopHarness      a fake node for native tests
//!     capture.rs      Capture                   pcap files, by the feature `pcap`
//!     chain.rs        Chain                     several functions, one after another
//!     frame.rs        Frame                     frames for tests
//! ```
//!
//! A function's code names none of these folders: everything in them is at the top of the crate, [`headers`] for example.

mod functions;
mod host;
mod packets;
#[cfg(feature = "tables")]
mod tables;

#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "net")]
#[doc(hidden)]
pub mod foreign;
#[cfg(feature = "net")]
pub mod net;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
/// Checked views of headers, and code that emits them: smoltcp's, so that all crates of a function use one version. With the feature
/// `wire`.
#[cfg(feature = "wire")]
pub use smoltcp::wire;

pub use functions::function::{Function, InitError, PacketFunction};
pub use functions::looping::{Io, Looping};
pub use host::alive::{KeepAlive, keep_alive_until};
pub use host::finish::finish;
pub use host::{clock, keys, log, metrics, nn, random, state};
pub use packets::batch::Batch;
pub use packets::held::Held;
pub use packets::message::{AnswerTooLong, Message, PAYLOAD_BYTES_MAX};
pub use packets::packet::{Checksum, Direction, NoRoom, Packet, Side};
pub use packets::pool::{PACKET_BYTES_MAX, SLOT_COUNT_DEFAULT, SLOT_SIZE};
pub use packets::slots::Slots;
pub use packets::way::Way;
pub use packets::{checksum, headers, outbound};
pub use pinion_abi::LogLevel;
#[cfg(feature = "tables")]
pub use tables::{fragments, lru, table};

/// Most packets in a [`Batch`].
pub const BATCH_PACKETS_MAX: u32 = 64;

/// Lets other instances of the same core run, and returns at this instance's next turn.
///
/// A function need not call this: one that computes for long is preempted anyway. If a function yields at a suitable moment, other
/// instances on the core get lower latency.
///
/// ```
/// for part in [[0_u8; 512], [1; 512]] {
///     let _ = pinion_sdk::checksum::of(&part);
///     pinion_sdk::yield_now();
/// }
/// ```
pub fn yield_now() {
    host::calls::yield_now();
}

/// Makes a Wasm module of a [`Function`] or a [`Looping`] function: defines its pool and the exports that a node calls.
///
/// Use it once per crate. `slots` sets the number of packets that the module can hold at once, a power of two up to 1,024 (256 without it).
/// The node's memory is used only for slots that have held packets.
///
/// ```
/// use pinion_sdk::{Batch, Function, InitError};
///
/// struct Forward;
///
/// impl Function for Forward {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self)
///     }
///
///     fn handle(&mut self, batch: Batch<'_>) {
///         batch.for_each(pinion_sdk::Packet::send);
///     }
/// }
///
/// const SLOTS: usize = 128;
/// pinion_sdk::export!(Forward, slots = SLOTS);
/// ```
///
/// A number of slots that the node would refuse does not compile:
///
/// ```compile_fail,E0080
/// # use pinion_sdk::{Batch, Function, InitError};
/// # struct Forward;
/// # impl Function for Forward {
/// #     fn init(_config: &[u8]) -> Result<Self, InitError> { Ok(Self) }
/// #     fn handle(&mut self, _batch: Batch<'_>) {}
/// # }
/// pinion_sdk::export!(Forward, slots = 100);
/// ```
#[macro_export]
macro_rules! export {
    ($function:ty) => {
        $crate::export!($function, slots = $crate::SLOT_COUNT_DEFAULT);
    };
    ($function:ty, slots = $slots:expr) => {
        $crate::__export_module!($function, slots = $slots, run = $crate::__private::run);
    };
}

/// The common expansion of all macros that make a module, so that every kind of function has the same exports. `run` is what `pinion_run`
/// does with the function and its pool; [`Looping`] provides the rest.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_module {
    ($function:ty, slots = $slots:expr, run = $run:expr) => {
        const _: () = {
            const __PINION_SLOTS: usize = $crate::__private::checked_slot_count($slots);
            const __PINION_OWN_SLOTS: u16 =
                $crate::__private::checked_own_slots(<$function as $crate::Looping>::OWN_SLOTS, __PINION_SLOTS);

            #[cfg(not(target_family = "wasm"))]
            const _: fn(&[u8]) -> ::core::result::Result<$function, $crate::InitError> =
                <$function as $crate::Looping>::init;

            #[cfg(target_family = "wasm")]
            ::std::thread_local! {
                static POOL: $crate::__private::PoolMemory<__PINION_SLOTS> = const { $crate::__private::PoolMemory::new() };
                static FUNCTION: $crate::__private::FunctionCell<$function> =
                    const { $crate::__private::FunctionCell::new(None) };
            }

            #[cfg(target_family = "wasm")]
            #[unsafe(export_name = "_initialize")]
            extern "C" fn exported_initialize() {
                $crate::__private::initialize();
            }

            #[cfg(target_family = "wasm")]
            #[unsafe(export_name = "pinion_abi_v3")]
            extern "C" fn exported_abi_v3() {}

            #[cfg(target_family = "wasm")]
            #[unsafe(export_name = "pinion_init")]
            extern "C" fn exported_init() -> i32 {
                FUNCTION.with($crate::__private::init)
            }

            #[cfg(target_family = "wasm")]
            #[unsafe(export_name = "pinion_pool")]
            extern "C" fn exported_pool() -> u32 {
                POOL.with(|pool| pool.publish(__PINION_OWN_SLOTS))
            }

            #[cfg(target_family = "wasm")]
            #[unsafe(export_name = "pinion_metrics")]
            extern "C" fn exported_metrics() -> u32 {
                $crate::__private::metrics()
            }

            #[cfg(target_family = "wasm")]
            #[unsafe(export_name = "pinion_run")]
            extern "C" fn exported_run() {
                FUNCTION.with(|function| POOL.with(|pool| $run(function, pool)))
            }
        };
    };
}

/// Called by the expansion of [`export!`]; not part of the interface.
#[doc(hidden)]
pub mod __private {
    #[cfg(target_family = "wasm")]
    pub use crate::functions::guest::{FunctionCell, init, initialize, metrics, report_panics, run};
    pub use crate::packets::pool::{PoolMemory, checked_own_slots, checked_slot_count};
}

/// The function shown in the project's README, to check that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
