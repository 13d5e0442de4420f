//! The contract between a guest module and the node that runs it, version 3.
//!
//! This crate defines the memory layouts that both sides use and the names of the functions that both sides call. It contains no other code
//! and has no dependencies, so that guests, the MMA and the runtime can all depend on it.
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
//! **Ownership.** The host reads and writes the rings only while the guest is suspended after an [`IMPORT_WAIT`] or [`IMPORT_WAIT_UNTIL`]
//! that returned zero, and when [`EXPORT_RUN`] has returned. A slot belongs to the host until the host names it in a receive descriptor.
//! From then on it belongs to the guest, until the guest names it in a transmit descriptor. The host keeps its own copy of every index and
//! of the owner of each slot: the host treats what a guest writes here as a request, never as a fact.
//!
//! **The guest's own slots.** The last [`PoolHeader::own_slots`] slots belong to the guest as soon as its first packet is published. The
//! guest writes packets that it makes itself into these slots, and names them in transmit descriptors like others. The host never receives
//! packets into them. Once the host has taken a frame out of such a slot, it returns the slot by a receive descriptor of length 0, which is
//! not a packet.
//!
//! **Ways.** Each received frame has a way: the port by which it came in and, in a chain with a way back, its direction. The host records
//! the way of the frame in each slot, and a frame that is sent from there keeps it. A frame in one of the guest's own slots has the way that
//! its transmit descriptor names: that of any frame that the guest has received before. It takes the outputs of that way's direction, and
//! as a [`PORT_REPLY`] it goes towards that way's port.
//!
//! **Waiting.** [`IMPORT_WAIT`] returns the number of receive descriptors that it has not reported before. On zero the guest is suspended
//! at its next loop or function boundary. The host then takes the contents of the transmit ring. When packets have arrived and it is the
//! guest's turn, the host publishes them, and the guest calls again. [`IMPORT_WAIT_UNTIL`] does the same with a deadline: once that has
//! passed, the guest gets its turn even if nothing has arrived, and the call returns [`DEADLINE_PASSED`]. The rings are exchanged before
//! every answer except zero. So a guest that waits for a time already past still gives up its turn: it neither keeps the core nor misses
//! packets that arrive. Before its first packet a guest waits only for that packet, whatever its deadline.
//!
//! **Staying alive.** The host ends an instance that got no packet for its chain's idle time; its memory is lost. An instance that still
//! needs its memory says so by [`IMPORT_KEEP_ALIVE_UNTIL`]. The operator's maximum bounds how long an instance stays without a packet.
//!
//! **State.** Data that outlives an instance, or that instances share, is stored by the host: in the fields that the stage was granted, by
//! key. A call names a field by the number that [`IMPORT_STATE_OPEN`] returns. The number is the same in all instances and may be kept in a
//! snapshot. All these calls return zero or more, or the negative of an [`Errno`].
//!
//! **Keys.** Private keys of TLS servers stay with the host. A stage that was granted one has the host sign handshakes with it, by the number
//! that [`IMPORT_KEY_OPEN`] returns, and seal and open session tickets. The host signs nothing but what a TLS server signs. During
//! [`IMPORT_KEY_SIGN`] the guest is suspended, and its rings are not exchanged. These calls return zero or more, or the negative of an
//! [`Errno`], too.
//!
//! **Metrics.** A module that exports [`EXPORT_METRICS`] has counters and gauges ([`MetricsHeader`]). The host reads their definitions
//! once, after `pinion_init`. The guest then writes their values at any time, each a word of its memory. The host reads the values from
//! time to time while the guest is suspended, and when it has ended.
//!
//! All integers are little-endian, as WebAssembly's own memory is.

#![no_std]
#![forbid(unsafe_code)]

mod flows;

pub use flows::*;

/// The version of this contract. A module declares it by exporting a function named [`EXPORT_ABI_PREFIX`] followed by the number, so that
/// the version can be read without running the module.
pub const ABI_VERSION: u32 = 3;

/// Prefix of the marker export: `pinion_abi_v3` takes nothing, returns nothing and is never called.
pub const EXPORT_ABI_PREFIX: &str = "pinion_abi_v";
/// `pinion_init() -> i32`: reads the configuration and prepares the function; zero or an [`InitStatus`].
pub const EXPORT_INIT: &str = "pinion_init";
/// `pinion_pool() -> i32`: the address of the guest's [`PoolHeader`]. Called once, after `pinion_init`.
pub const EXPORT_POOL: &str = "pinion_pool";
/// `pinion_run()`: the function itself, one call that lasts as long as the instance. When it returns, the host takes the contents of the
/// transmit ring, and the instance ends.
pub const EXPORT_RUN: &str = "pinion_run";
/// `pinion_metrics() -> i32`: the address of the guest's [`MetricsHeader`]. Optional; called once, after [`EXPORT_POOL`].
pub const EXPORT_METRICS: &str = "pinion_metrics";
/// The linear memory's export name.
pub const EXPORT_MEMORY: &str = "memory";
/// `_initialize()`: the reactor constructor of WASI modules, called first where it exists.
pub const EXPORT_INITIALIZE: &str = "_initialize";

/// The import module of everything that Pinion itself provides.
pub const IMPORT_MODULE: &str = "pinion";
/// `wait() -> i32`: the number of new receive descriptors; on zero the rings are exchanged at the next boundary.
pub const IMPORT_WAIT: &str = "wait";
/// `wait_until(deadline_ns: i64) -> i32`: as [`IMPORT_WAIT`], but returns [`DEADLINE_PASSED`] if the rings were exchanged since the last
/// call that did not return zero, nothing has arrived, and [`IMPORT_CLOCK`] says `deadline_ns` or later. On zero the guest must call again,
/// with the same deadline or another.
pub const IMPORT_WAIT_UNTIL: &str = "wait_until";
/// `yield()`: lets other instances run; returns at this instance's next turn, without exchanging rings.
pub const IMPORT_YIELD: &str = "yield";
/// `log(level: i32, ptr: i32, len: i32)`: writes one line of UTF-8 to the tenant's log, see [`LogLevel`]. A line longer than
/// [`LOG_LINE_BYTES_MAX`] is cut.
pub const IMPORT_LOG: &str = "log";
/// `clock() -> i64`: returns the nanoseconds of a monotonic clock, in steps that the operator chooses, each shown late by a random part of a
/// step. No node has shorter ones than [`CLOCK_STEP_NS`]; by default they are a hundred times as long.
pub const IMPORT_CLOCK: &str = "clock";
/// `random(ptr: i32, len: i32) -> i32`: fills memory with random bytes, at most [`RANDOM_BYTES_MAX`] a call; returns an [`Errno`].
pub const IMPORT_RANDOM: &str = "random";
/// `config(ptr: i32, capacity: i32) -> i32`: copies the start of the configuration, as much as fits; returns its full length.
pub const IMPORT_CONFIG: &str = "config";

/// `keep_alive_until(until_ns: i64) -> i64`: asks the node not to end the instance for lack of packets before [`IMPORT_CLOCK`] says
/// `until_ns`. Returns the time until which the instance is kept, which the operator's maximum may shorten, or 0 if it is not kept. The
/// latest call counts. Each stage of an instance calls for itself, and the latest time of all stages holds. A time that has passed ends the
/// request. In `pinion_init` the call has no effect.
pub const IMPORT_KEEP_ALIVE_UNTIL: &str = "keep_alive_until";

/// `panic(ptr: i32, len: i32)`: ends the instance and gives the reason in UTF-8. The tenant finds the reason in the report of the
/// instance's end. Does not return. A text longer than [`LOG_LINE_BYTES_MAX`] is cut.
pub const IMPORT_PANIC: &str = "panic";
/// Prefix of those imports of [`IMPORT_MODULE`] that are for stages with granted state.
pub const IMPORT_STATE_PREFIX: &str = "state_";
/// `state_open(name: i32, len: i32) -> i32`: returns the number of the stage's field of that name. The only state call that is allowed in
/// `pinion_init`.
pub const IMPORT_STATE_OPEN: &str = "state_open";
/// `state_get(field: i32, key: i32, key_len: i32, value: i32, capacity: i32) -> i32`: copies the start of the value, as much as fits;
/// returns its full length.
pub const IMPORT_STATE_GET: &str = "state_get";
/// `state_put(field: i32, key: i32, key_len: i32, value: i32, len: i32) -> i32`: stores a value, whether or not there was one.
pub const IMPORT_STATE_PUT: &str = "state_put";
/// `state_cas(field: i32, key: i32, key_len: i32, expected: i32, expected_len: i32, value: i32, len: i32) -> i32`: stores a value if the
/// stored value equals the expected one. An `expected_len` of [`STATE_EXPECT_NONE`] expects that there is no entry.
pub const IMPORT_STATE_CAS: &str = "state_cas";
/// `state_add(field: i32, key: i32, key_len: i32, delta: i64, sum: i32) -> i32`: adds to a number of 8 bytes, which counts as zero if there
/// is none, and wraps around; writes the sum to memory.
pub const IMPORT_STATE_ADD: &str = "state_add";
/// `state_expire(field: i32, key: i32, key_len: i32, ttl_ms: i64) -> i32`: sets the entry's time to live in milliseconds. Zero ends the
/// entry at once; a negative value keeps it without limit.
pub const IMPORT_STATE_EXPIRE: &str = "state_expire";
/// `state_delete(field: i32, key: i32, key_len: i32) -> i32`: removes an entry.
pub const IMPORT_STATE_DELETE: &str = "state_delete";

/// `key_open(name: i32, len: i32) -> i32`: returns the number of the stage's private key of that name. The only call for keys that is allowed in
/// `pinion_init`. The number is the same in all instances.
pub const IMPORT_KEY_OPEN: &str = "key_open";
/// `key_sign(key: i32, scheme: i32, message: i32, len: i32, signature: i32, capacity: i32) -> i32`: signs a message by a scheme of TLS (RFC
/// 8446, section 4.2.3), and returns the signature's length, at most [`KEY_SIGNATURE_BYTES_MAX`]. The message is the content of a
/// CertificateVerify of TLS 1.3 (section 4.4.3), or the randoms and the parameters of a ServerKeyExchange of TLS 1.2 with x25519, secp256r1
/// or secp384r1 (RFC 8422, section 5.4); others get [`Errno::Refused`]. The guest is suspended until another thread has signed.
pub const IMPORT_KEY_SIGN: &str = "key_sign";
/// `ticket_seal(key: i32, plain: i32, len: i32, sealed: i32, capacity: i32) -> i32`: seals the content of a session ticket, at most
/// [`TICKET_PLAIN_BYTES_MAX`], and returns the ticket's length, which is by [`TICKET_OVERHEAD_BYTES`] greater. All instances with this key open
/// it, for six hours at least.
pub const IMPORT_TICKET_SEAL: &str = "ticket_seal";
/// `ticket_open(key: i32, sealed: i32, len: i32, plain: i32, capacity: i32) -> i32`: opens a session ticket, and returns its content's length.
/// One that has expired, was forged, or is of another key gets [`Errno::Refused`].
pub const IMPORT_TICKET_OPEN: &str = "ticket_open";

/// Longest message that is signed, in bytes; no handshake has a longer one.
pub const KEY_MESSAGE_BYTES_MAX: usize = 256;
/// Longest signature, in bytes.
pub const KEY_SIGNATURE_BYTES_MAX: usize = 512;
/// Longest content of a session ticket, in bytes.
pub const TICKET_PLAIN_BYTES_MAX: usize = 4096;
/// How many bytes longer a session ticket is than its content.
pub const TICKET_OVERHEAD_BYTES: usize = 32;

/// Longest key of an entry, in bytes.
pub const STATE_KEY_BYTES_MAX: usize = 64;
/// Longest value that a field may be declared with, in bytes.
pub const STATE_VALUE_BYTES_MAX: usize = 1024;
/// The `expected_len` by which [`IMPORT_STATE_CAS`] expects that there is no entry.
pub const STATE_EXPECT_NONE: i32 = -1;

/// The result of [`IMPORT_WAIT_UNTIL`] when its deadline has passed and nothing has arrived.
pub const DEADLINE_PASSED: i32 = -1;

/// Longest log line kept, in bytes.
pub const LOG_LINE_BYTES_MAX: u32 = 1024;
/// Most random bytes that one call returns.
pub const RANDOM_BYTES_MAX: u32 = 4096;
/// Longest configuration a stage may have, in bytes.
pub const CONFIG_BYTES_MAX: u32 = 64 * 1024;
/// The finest granularity of [`IMPORT_CLOCK`], and that of the SDK's tests.
pub const CLOCK_STEP_NS: u64 = 1_000;

/// First word of a [`PoolHeader`]: `PIN1` in memory order.
pub const POOL_MAGIC: u32 = u32::from_le_bytes(*b"PIN1");
/// Slots a pool may have at most.
pub const SLOT_COUNT_MAX: u32 = 1024;
/// Smallest slot, in bytes: a full Ethernet frame (1,518) and the headroom, rounded up to cache lines.
pub const SLOT_SIZE_MIN: u32 = 1600;
/// Largest slot, in bytes: the limit of a descriptor's 16-bit offsets.
pub const SLOT_SIZE_MAX: u32 = 32 * 1024;
/// The address and the size of a slot are multiples of this: a cache line.
pub const SLOT_ALIGN: u32 = 64;
/// Bytes the host leaves free before a received frame, for a guest that prepends a header.
pub const RX_HEADROOM: u32 = 64;

/// Received: the device found the IPv4 header's checksum correct.
pub const RX_IP_CHECKSUM_GOOD: u16 = 1 << 0;
/// Received: the device found the IPv4 header's checksum wrong.
pub const RX_IP_CHECKSUM_BAD: u16 = 1 << 1;
/// Received: the device found the TCP or UDP checksum correct.
pub const RX_L4_CHECKSUM_GOOD: u16 = 1 << 2;
/// Received: the device found the TCP or UDP checksum wrong.
pub const RX_L4_CHECKSUM_BAD: u16 = 1 << 3;
/// Received: the chain has a way back, and the frame passes its stages forwards, from the first to the last.
pub const RX_FORWARD: u16 = 1 << 4;
/// Received: the chain has a way back, and the frame passes its stages backwards, from the last to the first. If neither of the two bits is
/// set, the chain has no way back, or the frame is a message.
pub const RX_BACKWARD: u16 = 1 << 5;
/// Received, in a chain with a way back: the frame is another stage's reply ([`PORT_REPLY`]) to a frame that came in by this port, and goes
/// towards that port.
pub const RX_REPLY: u16 = 1 << 6;

/// To send: the host computes the frame's checksums before the frame goes on: that of the IPv4 header, and that of TCP, UDP, ICMP or ICMPv6
/// behind it or behind an IPv6 header. VLAN tags, IP options and extension headers may precede, and bytes behind the packet do not count. Of a
/// fragment only the IPv4 header's is computed. A frame that is no whole packet of these goes on as it is. The time counts as the guest's.
pub const TX_CHECKSUM: u16 = 1 << 15;

/// Transmit port: the stage's first output. By default it leads to the next stage of the chain, or out of the node after the last stage. If
/// the chain gives the stage further outputs, these have the numbers from 1 on, below [`OUTPUTS_MAX`].
pub const PORT_NEXT: u16 = 0;
/// Most outputs that a stage may have.
pub const OUTPUTS_MAX: u16 = 16;
/// Transmit port: back out of the packet's ingress port, past the rest of the chain. In a chain with a way back, through the stages between
/// this stage and that port.
pub const PORT_REPLY: u16 = 0xfffe;
/// Transmit port: drops the packet; the slot is returned.
pub const PORT_DROP: u16 = 0xffff;

/// The number of ways: each [`Descriptor::way`] is below it.
pub const WAYS_MAX: u16 = 128;

/// EtherType of a message, one of those that IEEE 802 reserves for local experiments. A message is a frame that no device has received: it
/// carries a call of the chain ([`MESSAGE_HEADER_BYTES`]).
///
/// ```text
///    0          12     14        15     16      24     28        32
///    | addresses | type | version | zero | token | call | zero ... | payload, to the frame's end
/// ```
///
/// Its answer is a frame with the same token and call, and another payload. The rest of the answer's header is ignored. The type is in
/// network order, everything else little-endian.
pub const MESSAGE_ETHERTYPE: u16 = 0x88b5;
/// The version of a message's header.
pub const MESSAGE_VERSION: u8 = 1;
/// Offset of the version in a message.
pub const MESSAGE_VERSION_AT: usize = 14;
/// Offset of the token in a message. The token has 8 bytes, is good for one answer to this one message, and cannot be guessed.
pub const MESSAGE_TOKEN_AT: usize = 16;
/// Offset of the call's number in a message. The number has 4 bytes; by it the node finds the waiting caller.
pub const MESSAGE_CALL_AT: usize = 24;
/// Bytes of a message before its payload.
pub const MESSAGE_HEADER_BYTES: usize = 32;
/// The longest payload of a message or an answer: what fits into a frame of 1,518 bytes, which fits into the smallest slot.
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
    /// The number of the guest's own slots, which are the last ones: fewer than `slot_count`.
    pub own_slots: u32,
}

/// First word of a [`MetricsHeader`]: `PMT1` in memory order.
pub const METRICS_MAGIC: u32 = u32::from_le_bytes(*b"PMT1");
/// Most metrics that a module may have, and most of these that may have a [`MetricText`].
pub const METRICS_MAX: u32 = 128;
/// See [`METRICS_MAX`].
pub const METRIC_TEXTS_MAX: u32 = 32;
/// Longest name of a metric or of a label, in bytes.
pub const METRIC_NAME_BYTES_MAX: u32 = 64;
/// Longest help of a metric, in bytes.
pub const METRIC_HELP_BYTES_MAX: u32 = 256;
/// Most labels that a metric may have, and the longest text of all of them together, in bytes.
pub const METRIC_LABELS_MAX: u32 = 8;
/// See [`METRIC_LABELS_MAX`].
pub const METRIC_LABELS_BYTES_MAX: u32 = 512;
/// Longest value of a label that changes, in bytes.
pub const METRIC_TEXT_BYTES_MAX: u32 = 124;
/// Labels that the node itself adds to every series. A metric must not have them.
pub const METRIC_LABELS_RESERVED: [&str; 4] = ["tenant", "chain", "stage", "module"];

/// Describes a guest's metrics. `pinion_metrics` returns its address; the host reads it, and everything that it points to, once.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsHeader {
    /// [`METRICS_MAGIC`].
    pub magic: u32,
    /// Number of metrics, up to [`METRICS_MAX`].
    pub count: u32,
    /// Address of the first [`MetricEntry`]; the others follow it.
    pub entries: u32,
    /// Zero.
    pub reserved: u32,
}

/// A counter or a gauge. No two metrics of a guest may have both the same name and the same labels. Nothing that is described here may lie
/// in the pool's slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricEntry {
    /// A [`MetricKind`].
    pub kind: u32,
    /// Address of its value, a multiple of 8: for a counter a `u64` that only grows, for a gauge an `i64`.
    pub value: u32,
    /// Address of its name, in the form that Prometheus requires: `[a-zA-Z_:][a-zA-Z0-9_:]*`. A gauge's name must not end in `_total`,
    /// which the node appends to the names of counters.
    pub name: u32,
    /// Bytes of its name, up to [`METRIC_NAME_BYTES_MAX`].
    pub name_len: u32,
    /// Address of its help text, a sentence on what it counts, in one line of UTF-8.
    pub help: u32,
    /// Bytes of the help text, up to [`METRIC_HELP_BYTES_MAX`].
    pub help_len: u32,
    /// Address of its labels, one per line: `name=value`, in UTF-8, with a line feed between two of them. Names match
    /// `[a-zA-Z_][a-zA-Z0-9_]*`, do not begin with `__`, and are not in [`METRIC_LABELS_RESERVED`].
    pub labels: u32,
    /// Bytes of its labels, up to [`METRIC_LABELS_BYTES_MAX`]; 0 for none.
    pub labels_len: u32,
    /// For a gauge with a label that changes: address of a [`MetricText`], a multiple of 4, that holds the value of the last label. That
    /// label's line is the name alone. While the text is empty, the series does not exist. Otherwise 0.
    pub text: u32,
    /// Zero.
    pub reserved: u32,
}

/// A label's value, which the guest may change at any time.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricText {
    /// Its length in bytes. A length over [`METRIC_TEXT_BYTES_MAX`] counts as [`METRIC_TEXT_BYTES_MAX`].
    pub len: u32,
    /// UTF-8.
    pub bytes: [u8; METRIC_TEXT_BYTES_MAX as usize],
}

/// The kind of a metric.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows. The node shows the sum over all instances, and the values of instances that have ended stay in the sum.
    Counter = 1,
    /// Goes up and down. The node shows the sum over all instances that exist.
    Gauge = 2,
}

/// The start of a ring. Indices count up forever and wrap at 2^32; an entry's position is its index modulo `ring_entries`. The producer
/// owns `tail`, the consumer owns `head`.
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
    /// Index of the slot.
    pub slot: u16,
    /// Offset of the frame in the slot, in bytes.
    pub offset: u16,
    /// The frame's length, in bytes. Received: 0 if this returns one of the guest's own slots.
    pub len: u16,
    /// Received: index of the node's ingress port. To send: [`PORT_NEXT`] or another of the stage's outputs, [`PORT_REPLY`] or
    /// [`PORT_DROP`].
    pub port: u16,
    /// Received: the results of the device that received the frame, [`RX_IP_CHECKSUM_GOOD`] and the others. A bit is clear if the device
    /// does not report it, or if another stage sent the frame. In a chain with a way back also the frame's direction, [`RX_FORWARD`] or
    /// [`RX_BACKWARD`], by the host's own record, whichever stage sent it. To send: [`TX_CHECKSUM`] or zero.
    pub flags: u16,
    /// Received: an index, below [`WAYS_MAX`], for the way by which the frame came: the port of ingress and, in a chain with a way back, the
    /// direction. To send from one of the guest's own slots: the way of a frame that was received before. From any other slot the host's
    /// own record counts, and this is ignored.
    pub way: u16,
    /// Received: when the frame came into the chain, in microseconds of [`IMPORT_CLOCK`], of which these are the lowest 32 bits. It is as
    /// coarse as that clock. Of a frame that waited for longer than 8 s to be published, it may be later than that. To send: zero.
    pub arrived: u32,
}

/// Severity of a log line.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something the tenant must act on.
    Error = 1,
    /// Something the tenant should know.
    Warn = 2,
    /// An event of normal operation.
    Info = 3,
    /// Details that help to find a fault.
    Debug = 4,
}

impl LogLevel {
    /// Returns the level for a guest's number; a number out of range counts as the nearest level.
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

/// The result of `pinion_init`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitStatus {
    /// Ready to run.
    Ready = 0,
    /// The configuration was refused; the log says why.
    ConfigRefused = 1,
}

/// The result of host calls that can be refused.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// Done.
    Ok = 0,
    /// An address range lies outside the guest's memory.
    Fault = 1,
    /// A length exceeds the call's limit, or the limit on what all calls of one turn may move together. In the latter case a loop may try
    /// again.
    TooLong = 2,
    /// State: another instance is using the entry; state and keys: this turn's calls have moved as much as they may. The turn ends at the next loop or
    /// function boundary, and the caller must try again in a loop.
    Again = 3,
    /// State, keys: not allowed in `pinion_init`, as all instances share its result; signatures also before the first wait.
    NotNow = 4,
    /// State: the stage may only read this field.
    Denied = 5,
    /// State: the stage was granted no field of this name or number.
    NoField = 6,
    /// State: nothing is stored under this key.
    NoEntry = 7,
    /// State: the field has no room for another entry.
    Full = 8,
    /// State: the stored value is not the expected one, or is not a number of 8 bytes.
    Mismatch = 9,
    /// Keys: the stage was granted no key of this name or number.
    NoKey = 10,
    /// Keys: the message is nothing that a TLS server signs, or the key does not sign it by this scheme; or the ticket has expired, was forged,
    /// or is of another key.
    Refused = 11,
    /// Keys: the tenant asks for more than it may, or the host failed. Later it may be possible.
    Busy = 12,
}

impl Errno {
    /// All variants, in the order of their numbers.
    pub const ALL: [Self; 13] = [
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
        Self::NoKey,
        Self::Refused,
        Self::Busy,
    ];

    /// Returns the result by which a call for state or keys reports this error.
    #[must_use]
    pub const fn negated(self) -> i32 {
        -(self as i32)
    }

    /// Returns the error of a call for state or keys that returned `returned`, or `None` if that is zero or more. An unknown number counts as
    /// [`Errno::NotNow`].
    #[must_use]
    pub const fn of_returned(returned: i32) -> Option<Self> {
        match returned {
            0.. => None,
            -12..=-1 => Some(Self::ALL[-returned as usize]),
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
