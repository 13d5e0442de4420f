//! The contract between a guest module and the node that runs it, version 2.
//!
//! This crate owns the layout of everything both sides touch and the names both sides call; it has no code
//! beyond that, and no dependency, so that guests, the MMA and the runtime can all stand on it.
//!
//! ```text
//!   guest linear memory
//!   +---------------------------------------------------------------+
//!   | PoolHeader   read once by the host, after `pinion_init`       |
//!   |   |-> receive ring    host writes entries, guest reads them   |
//!   |   |-> transmit ring   guest writes entries, host reads them   |
//!   |   `-> slots           packet bytes, `slot_size` each          |
//!   +---------------------------------------------------------------+
//! ```
//!
//! **Who may touch what, when.** The host reads and writes the rings only while the guest is suspended after an
//! [`IMPORT_WAIT`] or [`IMPORT_WAIT_UNTIL`] that returned zero, and when [`EXPORT_RUN`] has returned. A slot belongs to the host until the host names it in a receive descriptor; from then on
//! it belongs to the guest, until the guest names it in a transmit descriptor. The host keeps its own copy of
//! every index and of who owns each slot: what a guest writes here is a request, never a fact.
//!
//! **Slots of the guest's own.** The last [`PoolHeader::own_slots`] slots are the guest's from when its first packet is published: what it makes itself it
//! writes there, and names them in transmit descriptors as it does others. The host receives nothing into them. Once a frame was taken out of one, the
//! host gives it back by a receive descriptor of length 0, which is no packet. A [`PORT_REPLY`] from there leaves by the port that the
//! guest's last packet came in by.
//!
//! **Waiting.** [`IMPORT_WAIT`] returns how many receive descriptors there are that it has not told of. On zero the guest
//! is suspended at its next loop or function boundary. The host then takes what is in the transmit ring, and, when
//! something has arrived and it is the guest's turn, publishes that, and the guest calls again. [`IMPORT_WAIT_UNTIL`] is the same with a
//! deadline: once that has passed the guest has its turn even if nothing has arrived, and is told so by [`DEADLINE_PASSED`]. As the rings
//! are exchanged before each answer but zero, who waits for a time that has passed already gives up its turn like others, and
//! neither keeps the core nor misses what arrives. Before its first packet a guest waits for that only, whatever its deadline.
//!
//! **State.** What outlives an instance, or is shared with others, lies with the host: in fields that the stage was granted, by key. A field is
//! called by the number that [`IMPORT_STATE_OPEN`] says, which is the same in all instances and may be kept in a snapshot. All these calls
//! return at least zero, or the negative of an [`Errno`].
//!
//! **Metrics.** A module that exports [`EXPORT_METRICS`] has counters and gauges ([`MetricsHeader`]). Their definitions are read once, after
//! `pinion_init`; the guest then writes their values as it likes, each a word of its memory, and the host looks at those now and then
//! while the guest is suspended, and when it has ended.
//!
//! All integers are little-endian, as WebAssembly's own memory is.

#![no_std]
#![forbid(unsafe_code)]

/// The version of this contract. A module declares it by exporting a function named [`EXPORT_ABI_PREFIX`] followed
/// by the number, so that it can be read without running the module.
pub const ABI_VERSION: u32 = 2;

/// Prefix of the marker export: `pinion_abi_v2` takes nothing, returns nothing and is never called.
pub const EXPORT_ABI_PREFIX: &str = "pinion_abi_v";
/// `pinion_init() -> i32`: reads the configuration and prepares the function; zero or an [`InitStatus`].
pub const EXPORT_INIT: &str = "pinion_init";
/// `pinion_pool() -> i32`: the address of the guest's [`PoolHeader`]. Called once, after `pinion_init`.
pub const EXPORT_POOL: &str = "pinion_pool";
/// `pinion_run()`: the function itself, one call that lasts as long as the instance. When it returns, what is in the transmit ring is
/// taken, and the instance ends.
pub const EXPORT_RUN: &str = "pinion_run";
/// `pinion_metrics() -> i32`: the address of the guest's [`MetricsHeader`]. Optional; called once, after [`EXPORT_POOL`].
pub const EXPORT_METRICS: &str = "pinion_metrics";
/// The linear memory's export name.
pub const EXPORT_MEMORY: &str = "memory";
/// `_initialize()`: the reactor constructor of WASI modules, called first where it exists.
pub const EXPORT_INITIALIZE: &str = "_initialize";

/// The import module of everything Pinion offers itself.
pub const IMPORT_MODULE: &str = "pinion";
/// `wait() -> i32`: the number of new receive descriptors; on zero the rings are exchanged at the next boundary.
pub const IMPORT_WAIT: &str = "wait";
/// `wait_until(deadline_ns: i64) -> i32`: as [`IMPORT_WAIT`], but [`DEADLINE_PASSED`] if the rings were exchanged since the last
/// call that did not return zero, nothing has arrived, and [`IMPORT_CLOCK`] says `deadline_ns` or later. On zero the
/// guest is to call again, with the same deadline or another.
pub const IMPORT_WAIT_UNTIL: &str = "wait_until";
/// `yield()`: let others run; returns at this instance's next turn, without exchanging rings.
pub const IMPORT_YIELD: &str = "yield";
/// `log(level: i32, ptr: i32, len: i32)`: one line of UTF-8 for the tenant's log, see [`LogLevel`]. Bounded by
/// [`LOG_LINE_BYTES_MAX`]; what is longer is cut.
pub const IMPORT_LOG: &str = "log";
/// `clock() -> i64`: nanoseconds of a monotonic clock, in steps of [`CLOCK_STEP_NS`].
pub const IMPORT_CLOCK: &str = "clock";
/// `random(ptr: i32, len: i32) -> i32`: fills memory with random bytes, at most [`RANDOM_BYTES_MAX`] a call; an
/// [`Errno`].
pub const IMPORT_RANDOM: &str = "random";
/// `config(ptr: i32, capacity: i32) -> i32`: copies the start of the configuration, as much as fits; its full
/// length.
pub const IMPORT_CONFIG: &str = "config";

/// `panic(ptr: i32, len: i32)`: ends the instance, and says why in UTF-8: its tenant finds the sentence in the account of the end. Does not
/// return. Bounded by [`LOG_LINE_BYTES_MAX`]; what is longer is cut.
pub const IMPORT_PANIC: &str = "panic";
/// Imports of [`IMPORT_MODULE`] whose names begin like this are for stages that were granted state.
pub const IMPORT_STATE_PREFIX: &str = "state_";
/// `state_open(name: i32, len: i32) -> i32`: the number of the stage's field of that name. Good in `pinion_init`, too, as no other call
/// for state is.
pub const IMPORT_STATE_OPEN: &str = "state_open";
/// `state_get(field: i32, key: i32, key_len: i32, value: i32, capacity: i32) -> i32`: copies the start of the value, as much as fits;
/// its full length.
pub const IMPORT_STATE_GET: &str = "state_get";
/// `state_put(field: i32, key: i32, key_len: i32, value: i32, len: i32) -> i32`: stores a value, whether or not there was one.
pub const IMPORT_STATE_PUT: &str = "state_put";
/// `state_cas(field: i32, key: i32, key_len: i32, expected: i32, expected_len: i32, value: i32, len: i32) -> i32`: stores a value if
/// what is there is what is expected; if nothing is, with [`STATE_EXPECT_NONE`] as its length.
pub const IMPORT_STATE_CAS: &str = "state_cas";
/// `state_add(field: i32, key: i32, key_len: i32, delta: i64, sum: i32) -> i32`: adds to a number of 8 bytes, which is zero if it is not
/// there, and wraps around; writes the sum to memory.
pub const IMPORT_STATE_ADD: &str = "state_add";
/// `state_expire(field: i32, key: i32, key_len: i32, ttl_ms: i64) -> i32`: has an entry end after so many milliseconds, at once with
/// zero, and never with less.
pub const IMPORT_STATE_EXPIRE: &str = "state_expire";
/// `state_delete(field: i32, key: i32, key_len: i32) -> i32`: removes an entry.
pub const IMPORT_STATE_DELETE: &str = "state_delete";

/// Longest key of an entry, in bytes.
pub const STATE_KEY_BYTES_MAX: usize = 64;
/// Longest value that a field may be declared for, in bytes.
pub const STATE_VALUE_BYTES_MAX: usize = 1024;
/// Length of the value that [`IMPORT_STATE_CAS`] expects when it expects none.
pub const STATE_EXPECT_NONE: i32 = -1;

/// What [`IMPORT_WAIT_UNTIL`] returns when its deadline has passed and nothing has arrived.
pub const DEADLINE_PASSED: i32 = -1;

/// Longest log line kept, in bytes.
pub const LOG_LINE_BYTES_MAX: u32 = 1024;
/// Most random bytes one call gives.
pub const RANDOM_BYTES_MAX: u32 = 4096;
/// Longest configuration a stage may have, in bytes.
pub const CONFIG_BYTES_MAX: u32 = 64 * 1024;
/// Granularity of [`IMPORT_CLOCK`]: coarse, so that it is of little use as a side channel's stop-watch.
pub const CLOCK_STEP_NS: u64 = 1_000;

/// First word of a [`PoolHeader`]: `PIN1` in memory order.
pub const POOL_MAGIC: u32 = u32::from_le_bytes(*b"PIN1");
/// Slots a pool may have at most.
pub const SLOT_COUNT_MAX: u32 = 1024;
/// Smallest slot, in bytes: a full Ethernet frame (1,518) and the headroom, rounded up to cache lines.
pub const SLOT_SIZE_MIN: u32 = 1600;
/// Largest slot, in bytes: what a descriptor's 16-bit offsets can name.
pub const SLOT_SIZE_MAX: u32 = 32 * 1024;
/// Slots start on, and are sized in, multiples of this: a cache line.
pub const SLOT_ALIGN: u32 = 64;
/// Bytes the host leaves free before a received frame, for a guest that prepends a header.
pub const RX_HEADROOM: u32 = 64;

/// Received: the device has found the IPv4 header's checksum right.
pub const RX_IP_CHECKSUM_GOOD: u32 = 1 << 0;
/// Received: the device has found the IPv4 header's checksum wrong.
pub const RX_IP_CHECKSUM_BAD: u32 = 1 << 1;
/// Received: the device has found the TCP or UDP checksum right.
pub const RX_L4_CHECKSUM_GOOD: u32 = 1 << 2;
/// Received: the device has found the TCP or UDP checksum wrong.
pub const RX_L4_CHECKSUM_BAD: u32 = 1 << 3;

/// Transmit port: the stage's first output, by default the next stage of the chain, or out of the node after the last
/// one. Further outputs, where the chain gives the stage any, are the numbers from 1 on, below [`OUTPUTS_MAX`].
pub const PORT_NEXT: u16 = 0;
/// Outputs that a stage may have.
pub const OUTPUTS_MAX: u16 = 16;
/// Transmit port: back out of the port the packet came in by, past the rest of the chain. In a chain with a way back, through the
/// stages between here and that port.
pub const PORT_REPLY: u16 = 0xfffe;
/// Transmit port: nowhere; the slot is given back.
pub const PORT_DROP: u16 = 0xffff;

/// EtherType of a message, of those that IEEE 802 leaves to local experiments. A message is a frame that no device has received:
/// somebody invokes the chain ([`MESSAGE_HEADER_BYTES`]).
///
/// ```text
///    0          12     14        15     16      24     28        32
///    | addresses | type | version | zero | token | call | zero ... | payload, to the frame's end
/// ```
///
/// Its answer is a frame that has the same token and call, and another payload; what else is in its header is not looked at. Type is in
/// network order, all else little-endian.
pub const MESSAGE_ETHERTYPE: u16 = 0x88b5;
/// The version of a message's header.
pub const MESSAGE_VERSION: u8 = 1;
/// Where in a message the version is.
pub const MESSAGE_VERSION_AT: usize = 14;
/// Where in a message the token is, 8 bytes: good for one answer to this one message, and not to be guessed.
pub const MESSAGE_TOKEN_AT: usize = 16;
/// Where in a message the call's number is, 4 bytes, by which the node finds who waits.
pub const MESSAGE_CALL_AT: usize = 24;
/// Bytes of a message before its payload.
pub const MESSAGE_HEADER_BYTES: usize = 32;
/// The longest payload of a message or an answer: what a frame of 1,518 bytes holds, which fits into the smallest slot.
pub const MESSAGE_PAYLOAD_BYTES_MAX: usize = 1518 - MESSAGE_HEADER_BYTES;

/// Describes a guest's packet memory. `pinion_pool` returns its address; the host reads it once.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHeader {
    /// [`POOL_MAGIC`].
    pub magic: u32,
    /// Slots in the pool, from 1 to [`SLOT_COUNT_MAX`].
    pub slot_count: u32,
    /// Bytes per slot, a multiple of [`SLOT_ALIGN`] from [`SLOT_SIZE_MIN`] to [`SLOT_SIZE_MAX`].
    pub slot_size: u32,
    /// Address of slot 0, a multiple of [`SLOT_ALIGN`].
    pub slots: u32,
    /// Entries of each ring: a power of two, at least `slot_count`.
    pub ring_entries: u32,
    /// Address of the receive ring: a [`RingHeader`] and `ring_entries` descriptors after it.
    pub rx_ring: u32,
    /// Address of the transmit ring, of the same shape.
    pub tx_ring: u32,
    /// How many slots are the guest's own, the last ones: fewer than `slot_count`.
    pub own_slots: u32,
}

/// First word of a [`MetricsHeader`]: `PMT1` in memory order.
pub const METRICS_MAGIC: u32 = u32::from_le_bytes(*b"PMT1");
/// Metrics that a module may have at most, and how many of them may have a [`MetricText`].
pub const METRICS_MAX: u32 = 128;
/// See [`METRICS_MAX`].
pub const METRIC_TEXTS_MAX: u32 = 32;
/// Longest name of a metric or of a label, in bytes.
pub const METRIC_NAME_BYTES_MAX: u32 = 64;
/// Longest help of a metric, in bytes.
pub const METRIC_HELP_BYTES_MAX: u32 = 256;
/// Labels that a metric may have at most, and the longest text of all of them, in bytes.
pub const METRIC_LABELS_MAX: u32 = 8;
/// See [`METRIC_LABELS_MAX`].
pub const METRIC_LABELS_BYTES_MAX: u32 = 512;
/// Longest label that changes, in bytes.
pub const METRIC_TEXT_BYTES_MAX: u32 = 124;
/// Labels that the node gives every series itself, so that no metric may have them.
pub const METRIC_LABELS_RESERVED: [&str; 4] = ["tenant", "chain", "stage", "module"];

/// Describes a guest's metrics. `pinion_metrics` returns its address; the host reads it, and all that it leads to, once.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsHeader {
    /// [`METRICS_MAGIC`].
    pub magic: u32,
    /// How many there are, up to [`METRICS_MAX`].
    pub count: u32,
    /// Address of the first [`MetricEntry`]; the others follow it.
    pub entries: u32,
    /// Zero.
    pub reserved: u32,
}

/// A counter, or a gauge. No two of a guest have the same name and the same labels, and none of what is described here may lie in the
/// pool's slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricEntry {
    /// A [`MetricKind`].
    pub kind: u32,
    /// Address of its value, a multiple of 8: of a counter a `u64` that only grows, of a gauge an `i64`.
    pub value: u32,
    /// Address of its name, which Prometheus' rules are for: `[a-zA-Z_:][a-zA-Z0-9_:]*`. A gauge's does not end in `_total`, which
    /// counters' names are given.
    pub name: u32,
    /// Bytes of its name, up to [`METRIC_NAME_BYTES_MAX`].
    pub name_len: u32,
    /// Address of a sentence on what it counts, in one line of UTF-8.
    pub help: u32,
    /// Bytes of the sentence, up to [`METRIC_HELP_BYTES_MAX`].
    pub help_len: u32,
    /// Address of its labels, a line each: `name=value`, in UTF-8, with a line feed between two of them. Names are
    /// `[a-zA-Z_][a-zA-Z0-9_]*`, do not begin with `__`, and are not of [`METRIC_LABELS_RESERVED`].
    pub labels: u32,
    /// Bytes of its labels, up to [`METRIC_LABELS_BYTES_MAX`]; 0 for none.
    pub labels_len: u32,
    /// Of a gauge: address of a [`MetricText`], a multiple of 4, that is the value of the last of its labels, whose line is the name
    /// alone. While that is empty there is no such series. Else 0.
    pub text: u32,
    /// Zero.
    pub reserved: u32,
}

/// A label's value that changes as the guest likes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricText {
    /// How long it is, in bytes; what is over [`METRIC_TEXT_BYTES_MAX`] counts as that.
    pub len: u32,
    /// UTF-8.
    pub bytes: [u8; METRIC_TEXT_BYTES_MAX as usize],
}

/// What a metric is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Grows: those of all instances are added up, and stay so when instances end.
    Counter = 1,
    /// Goes up and down: those of the instances that there are, are added up.
    Gauge = 2,
}

/// The start of a ring. Indices count up for ever and wrap at 2^32; an entry's place is its index modulo
/// `ring_entries`. The producer owns `tail`, the consumer owns `head`.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingHeader {
    /// Index of the next entry to be consumed.
    pub head: u32,
    /// Index of the next entry to be produced.
    pub tail: u32,
    /// Zero.
    pub reserved: [u32; 2],
}

/// One packet in a slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Which slot.
    pub slot: u16,
    /// Where in the slot the frame starts, in bytes.
    pub offset: u16,
    /// The frame's length, in bytes. Received: 0 for a slot of the guest's own that comes back.
    pub len: u16,
    /// Received: index of the node's port it came in by. To send: [`PORT_NEXT`] or another of the
    /// stage's outputs, [`PORT_REPLY`] or [`PORT_DROP`].
    pub port: u16,
    /// Received: what the device that received the frame has found out, [`RX_IP_CHECKSUM_GOOD`] and the others; nothing of
    /// what it does not tell, nor of frames that another stage sent. To send: zero.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Severity of a log line.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something the tenant must act on.
    Error = 1,
    /// Something the tenant should know.
    Warn = 2,
    /// What happens in the normal course.
    Info = 3,
    /// What helps to find a fault.
    Debug = 4,
}

impl LogLevel {
    /// The level of a guest's number; what is out of range counts as the nearest level.
    #[must_use]
    pub const fn from_guest(level: i32) -> Self {
        match level {
            i32::MIN..=1 => Self::Error,
            2 => Self::Warn,
            3 => Self::Info,
            _ => Self::Debug,
        }
    }
}

/// What `pinion_init` returns.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitStatus {
    /// Ready to run.
    Ready = 0,
    /// The configuration was refused; the log says why.
    ConfigRefused = 1,
}

/// What host calls that can be refused return.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// Done.
    Ok = 0,
    /// An address range lies outside the guest's memory.
    Fault = 1,
    /// A length is over the call's bound, or over what all calls of one turn may move together: a loop may try again.
    TooLong = 2,
    /// State: not now, as somebody else is at the entry, or this turn's calls have moved as much as they may. The turn ends at the next loop
    /// or function boundary; a loop is to try again.
    Again = 3,
    /// State: not in `pinion_init`, of which all instances have what it leaves behind.
    NotNow = 4,
    /// State: the stage was granted this field to read only.
    Denied = 5,
    /// State: the stage was granted no field of this name or number.
    NoField = 6,
    /// State: nothing is stored under this key.
    NoEntry = 7,
    /// State: the field has no room for another entry.
    Full = 8,
    /// State: what is stored is not what was expected, or is no number of 8 bytes.
    Mismatch = 9,
}

impl Errno {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Fault,
        Self::TooLong,
        Self::Again,
        Self::NotNow,
        Self::Denied,
        Self::NoField,
        Self::NoEntry,
        Self::Full,
        Self::Mismatch,
    ];

    /// What a call for state returns that comes to this.
    #[must_use]
    pub const fn negated(self) -> i32 {
        -(self as i32)
    }

    /// What a call for state came to that has returned this, if it is less than zero. A number that nobody knows counts as
    /// [`Errno::NotNow`].
    #[must_use]
    pub const fn of_returned(returned: i32) -> Option<Self> {
        match returned {
            0.. => None,
            -9..=-1 => Some(Self::ALL[-returned as usize]),
            _ => Some(Self::NotNow),
        }
    }
}

const _: () = {
    assert!(core::mem::size_of::<PoolHeader>() == 32);
    assert!(core::mem::size_of::<RingHeader>() == 16);
    assert!(core::mem::size_of::<MetricsHeader>() == 16);
    assert!(core::mem::size_of::<MetricEntry>() == 40);
    assert!(core::mem::size_of::<MetricText>() == 128);
    assert!(core::mem::size_of::<Descriptor>() == 16);
    assert!(SLOT_SIZE_MIN.is_multiple_of(SLOT_ALIGN));
    assert!(SLOT_SIZE_MAX <= u16::MAX as u32);
    assert!(MESSAGE_HEADER_BYTES + MESSAGE_PAYLOAD_BYTES_MAX + RX_HEADROOM as usize <= SLOT_SIZE_MIN as usize);
};
