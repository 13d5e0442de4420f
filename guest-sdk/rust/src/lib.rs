//! What a tenant writes a Pinion function in Rust with.
//!
//! A function is a type that implements [`Function`]: it is prepared once from its configuration and then gets
//! packets in batches. [`export!`] makes a Wasm module of it. Each packet lies in a slot of the module's own memory
//! and is read and changed in place; what becomes of it is said by [`Packet::send`] (on along the chain),
//! [`Packet::reply`] (back to where it came from) or [`Packet::discard`]. A packet that goes out of scope without any
//! of these is dropped, so no slot is ever lost. Who looks at one packet after the other writes [`PacketFunction`] instead. A function that
//! waits for time as well as for packets says until when ([`Function::deadline_ns`]), and keeps packets for then ([`Packet::hold`]). One that makes
//! packets itself says how many slots they may take ([`Function::OWN_SLOTS`]). And who would rather write a loop that waits by itself writes
//! [`Looping`]. What a function counts shows on the node by [`metrics`], what it says by [`log`], and a panic's message and place in
//! the account of its instance's end.
//!
//! ```
//! use pinion_sdk::{Batch, Function, InitError};
//!
//! /// Lets frames of one EtherType pass.
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
//! [`Function::init`] finds them as well, so that what is made of them is in the snapshot that instances start from; it cannot change them
//! (`ErrorKind::ReadOnlyFilesystem`), and must leave none open, or the chain is refused. An instance may write, make and remove what it likes:
//! nobody else sees it, it counts as the instance's memory (`ErrorKind::StorageFull` when there is no more), and goes with it. At most 64 files
//! are open at a time. Files have no times. Reading takes time of the function's turn, as a copy does: what each packet needs is better
//! kept in memory. In native tests paths mean what they do on that machine, so let a test say where the files are.
//!
//! # Where things live
//!
//! ```text
//!   function.rs   Function, PacketFunction  what a tenant implements
//!   looping.rs    Looping, Io               a loop of one's own instead
//!   packet.rs     Batch, Packet             views of slots, and their verdicts
//!   held.rs       Held, Shelf               packets that are kept from one batch to another
//!   message.rs    Message                   packets by which somebody calls the function
//!   headers.rs    Headers, FlowKey          what a frame's headers say, and how to change it
//!   table.rs      Table                     flows that go on, never too many
//!   lru.rs        Lru                       the same for those who choose what is forgotten
//!   state.rs      Field                     what outlives an instance, or is shared with others
//!   checksum.rs   of, update                the Internet checksum
//!   config.rs     parse                     configurations with names and types, by the feature `config`
//!   tcp.rs        Server, Program           connections that end in the function, by the feature `tcp`
//!   metrics.rs    Counter, Gauge            what the node shows of a function
//!   log.rs        error, warn, info, debug  lines for the tenant's log
//!   finish.rs     finish                    how an instance ends itself
//!   pool.rs       PoolMemory, Pool          slots and rings in static memory; owns `unsafe` for slots
//!   host.rs       the node's calls          imports under Wasm, a fake elsewhere; owns `unsafe` for imports
//!   guest.rs      init, run                 what the exported entry points do
//!   testing.rs    Harness, LoopHarness      a fake node for native tests
//! ```

mod finish;
mod function;
mod guest;
mod held;
mod host;
mod looping;
mod message;
mod packet;
mod pool;

pub mod checksum;
pub mod clock;
#[cfg(feature = "config")]
pub mod config;
pub mod headers;
pub mod log;
pub mod lru;
pub mod metrics;
pub mod random;
pub mod state;
pub mod table;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
/// Checked views of headers, and what emits them: smoltcp's, so that all crates of a function use one version. With the
/// feature `wire`.
#[cfg(feature = "wire")]
pub use smoltcp::wire;

pub use finish::finish;
pub use function::{Function, InitError, PacketFunction};
pub use held::{Held, Shelf};
pub use looping::{Io, Looping};
pub use message::{AnswerTooLong, Message, PAYLOAD_BYTES_MAX};
pub use packet::{Batch, Checksum, NoRoom, Packet};
pub use pinion_abi::LogLevel;
pub use pool::{PACKET_BYTES_MAX, SLOT_COUNT_DEFAULT, SLOT_SIZE};

/// Most packets a [`Batch`] has.
pub const BATCH_PACKETS_MAX: u32 = 64;

/// Lets other instances of the same core run, and returns at this instance's next turn.
///
/// Nothing has to call this: a function that computes for long is preempted anyway. One that knows a good moment to
/// pause gives its neighbours lower latency.
///
/// ```
/// for part in [[0_u8; 512], [1; 512]] {
///     let _ = pinion_sdk::checksum::of(&part);
///     pinion_sdk::yield_now();
/// }
/// ```
pub fn yield_now() {
    host::yield_now();
}

/// Makes a Wasm module of a [`Function`], or of what is [`Looping`]: gives it its pool and the exports that a node calls.
///
/// Used once per crate. `slots` sets the number of packets the module can hold at once, a power of two up to 1,024
/// (256 without it); the node's memory is only used for slots that packets really came into.
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
/// A number of slots that the node would not take does not compile:
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
            #[unsafe(export_name = "pinion_abi_v2")]
            extern "C" fn exported_abi_v2() {}

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
                FUNCTION.with(|function| POOL.with(|pool| $crate::__private::run(function, pool)))
            }
        };
    };
}

/// What [`export!`] expands to calls of; no part of the interface.
#[doc(hidden)]
pub mod __private {
    #[cfg(target_family = "wasm")]
    pub use crate::guest::{FunctionCell, init, initialize, metrics, run};
    pub use crate::pool::{PoolMemory, checked_own_slots, checked_slot_count};
}

/// The function shown in the project's README, so that it stays one that compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
