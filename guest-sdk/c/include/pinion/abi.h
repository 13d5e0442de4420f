/* The contract between a guest and the node that runs it: written by `cargo run -p pinion-c-header` of guest-sdk/abi, where all of it is
 * explained. Not to be changed by hand. */
#ifndef PINION_ABI_H
#define PINION_ABI_H

#include <stdint.h>

/** EtherType of what a guest and the node say to each other about outbound flows: the other one that IEEE 802 reserves for local
 *  experiments. No device receives frames of this type for a guest.
 *
 *     0          12     14        15     16    24     32         33   34       35     36           38                40
 *     | addresses | type | version | kind | tag | flow | protocol | IP | reason | zero | source port | destination port | source address
 *                                                                                     56                    72     74       80
 *                                                                                     | destination address | VLAN | zero ...
 *
 *  A guest asks by a frame that it sends as it will send the packets of the flow: by the output, or as the reply, that leads out of the node
 *  by the same port. The node answers each request with one frame, which comes in where packets of that port do, and later tells with
 *  another one that the flow has ended. Addresses, type and ports are in network order, everything else little-endian. An IPv4 address is
 *  in the first 4 bytes of its field, with zeros behind it. */
#define PINION_FLOW_ETHERTYPE 34998

/** The version of these frames. */
#define PINION_FLOW_VERSION 1

/** Offset of the version. */
#define PINION_FLOW_VERSION_AT 14

/** Offset of the kind, a `pinion_flow_kind`. */
#define PINION_FLOW_KIND_AT 15

/** Offset of the tag: 8 bytes that the guest chooses when it asks for a flow. Whatever the node says about the flow has them, too. */
#define PINION_FLOW_TAG_AT 16

/** Offset of the flow's number, of 8 bytes, by which the guest asks for its end. Not 0 for a flow that was opened. */
#define PINION_FLOW_NUMBER_AT 24

/** Offset of the IP protocol's number, of 1 byte: 6 for TCP or 17 for UDP. */
#define PINION_FLOW_PROTOCOL_AT 32

/** Offset of the version of IP, of 1 byte: 4 or 6. */
#define PINION_FLOW_IP_AT 33

/** Offset of the reason, of 1 byte: a `pinion_flow_refusal` or a `pinion_flow_end`; otherwise 0. */
#define PINION_FLOW_REASON_AT 34

/** Offset of the source port, of 2 bytes, which the node chooses. */
#define PINION_FLOW_SOURCE_PORT_AT 36

/** Offset of the destination port, of 2 bytes. */
#define PINION_FLOW_DESTINATION_PORT_AT 38

/** Offset of the source address, of 16 bytes, which the node chooses. */
#define PINION_FLOW_SOURCE_AT 40

/** Offset of the destination address, of 16 bytes. */
#define PINION_FLOW_DESTINATION_AT 56

/** Offset of the VLAN's number, of 2 bytes: 0 for the untagged network. */
#define PINION_FLOW_VLAN_AT 72

/** Bytes of each of these frames. */
#define PINION_FLOW_BYTES 80

/** What a frame of `PINION_FLOW_ETHERTYPE` says. */
enum pinion_flow_kind {
    /** The guest asks for a flow to the destination. */
    PINION_FLOW_KIND_OPEN = 1,
    /** The guest asks for the end of the flow of this number. The answer says that it has ended, also if it did before. */
    PINION_FLOW_KIND_CLOSE = 2,
    /** The node has opened the flow: packets from its source to its destination may leave, and answers come in. */
    PINION_FLOW_KIND_OPENED = 3,
    /** The node does not open the flow, for a `pinion_flow_refusal`. */
    PINION_FLOW_KIND_REFUSED = 4,
    /** The flow has ended, for a `pinion_flow_end`. */
    PINION_FLOW_KIND_CLOSED = 5,
};

/** Why the node does not open a flow. */
enum pinion_flow_refusal {
    /** The request is none that the node understands, or the destination is not one host's address. */
    PINION_FLOW_REFUSAL_INVALID = 1,
    /** The chain's grants do not allow flows of this protocol to this destination, or none of its rules names this VLAN. */
    PINION_FLOW_REFUSAL_NOT_GRANTED = 2,
    /** The tenant or the instance has as many flows as it may have. */
    PINION_FLOW_REFUSAL_QUOTA = 3,
    /** All source ports are in use for flows to this destination. */
    PINION_FLOW_REFUSAL_NO_PORT = 4,
    /** The node has no address of this version there, or no route leads to the destination. */
    PINION_FLOW_REFUSAL_NO_ROUTE = 5,
};

/** Why a flow has ended. */
enum pinion_flow_end {
    /** The guest asked for it, or the flow did not exist. */
    PINION_FLOW_END_BY_GUEST = 1,
    /** Its TCP connection was closed by both sides, or reset by either. */
    PINION_FLOW_END_BY_CONNECTION = 2,
    /** The guest has sent nothing for too long. */
    PINION_FLOW_END_IDLE = 3,
    /** The chain's grants changed, and no longer allow it. */
    PINION_FLOW_END_NOT_GRANTED = 4,
    /** The node has as many flows as it can, this tenant more than it is guaranteed, and another one fewer. */
    PINION_FLOW_END_QUOTA = 5,
};

/** The version of this contract. A module declares it by exporting a function named `PINION_EXPORT_ABI_PREFIX` followed by the number, so that
 *  the version can be read without running the module. */
#define PINION_ABI_VERSION 3

/** Prefix of the marker export: `pinion_abi_v3` takes nothing, returns nothing and is never called. */
#define PINION_EXPORT_ABI_PREFIX "pinion_abi_v"

/** `pinion_init() -> i32`: reads the configuration and prepares the function; zero or an `pinion_init_status`. */
#define PINION_EXPORT_INIT "pinion_init"

/** `pinion_pool() -> i32`: the address of the guest's `pinion_pool_header`. Called once, after `pinion_init`. */
#define PINION_EXPORT_POOL "pinion_pool"

/** `pinion_run()`: the function itself, one call that lasts as long as the instance. When it returns, the host takes the contents of the
 *  transmit ring, and the instance ends. */
#define PINION_EXPORT_RUN "pinion_run"

/** `pinion_metrics() -> i32`: the address of the guest's `pinion_metrics_header`. Optional; called once, after `PINION_EXPORT_POOL`. */
#define PINION_EXPORT_METRICS "pinion_metrics"

/** The linear memory's export name. */
#define PINION_EXPORT_MEMORY "memory"

/** `_initialize()`: the reactor constructor of WASI modules, called first where it exists. */
#define PINION_EXPORT_INITIALIZE "_initialize"

/** The import module of everything that Pinion itself provides. */
#define PINION_IMPORT_MODULE "pinion"

/** `wait() -> i32`: the number of new receive descriptors; on zero the rings are exchanged at the next boundary. */
#define PINION_IMPORT_WAIT "wait"

/** `wait_until(deadline_ns: i64) -> i32`: as `PINION_IMPORT_WAIT`, but returns `PINION_DEADLINE_PASSED` if the rings were exchanged since the last
 *  call that did not return zero, nothing has arrived, and `PINION_IMPORT_CLOCK` says `deadline_ns` or later. On zero the guest must call again,
 *  with the same deadline or another. */
#define PINION_IMPORT_WAIT_UNTIL "wait_until"

/** `yield()`: lets other instances run; returns at this instance's next turn, without exchanging rings. */
#define PINION_IMPORT_YIELD "yield"

/** `log(level: i32, ptr: i32, len: i32)`: writes one line of UTF-8 to the tenant's log, see `pinion_log_level`. A line longer than
 *  `PINION_LOG_LINE_BYTES_MAX` is cut. */
#define PINION_IMPORT_LOG "log"

/** `clock() -> i64`: returns the nanoseconds of a monotonic clock, in steps that the operator chooses, each shown late by a random part of a
 *  step. No node has shorter ones than `PINION_CLOCK_STEP_NS`; by default they are a hundred times as long. */
#define PINION_IMPORT_CLOCK "clock"

/** `random(ptr: i32, len: i32) -> i32`: fills memory with random bytes, at most `PINION_RANDOM_BYTES_MAX` a call; returns an `pinion_errno`. */
#define PINION_IMPORT_RANDOM "random"

/** `config(ptr: i32, capacity: i32) -> i32`: copies the start of the configuration, as much as fits; returns its full length. */
#define PINION_IMPORT_CONFIG "config"

/** `keep_alive_until(until_ns: i64) -> i64`: asks the node not to end the instance for lack of packets before `PINION_IMPORT_CLOCK` says
 *  `until_ns`. Returns the time until which the instance is kept, which the operator's maximum may shorten, or 0 if it is not kept. The
 *  latest call counts. Each stage of an instance calls for itself, and the latest time of all stages holds. A time that has passed ends the
 *  request. In `pinion_init` the call has no effect. */
#define PINION_IMPORT_KEEP_ALIVE_UNTIL "keep_alive_until"

/** `panic(ptr: i32, len: i32)`: ends the instance and gives the reason in UTF-8. The tenant finds the reason in the report of the
 *  instance's end. Does not return. A text longer than `PINION_LOG_LINE_BYTES_MAX` is cut. */
#define PINION_IMPORT_PANIC "panic"

/** Prefix of those imports of `PINION_IMPORT_MODULE` that are for stages with granted state. */
#define PINION_IMPORT_STATE_PREFIX "state_"

/** `state_open(name: i32, len: i32) -> i32`: returns the number of the stage's field of that name. The only state call that is allowed in
 *  `pinion_init`. */
#define PINION_IMPORT_STATE_OPEN "state_open"

/** `state_get(field: i32, key: i32, key_len: i32, value: i32, capacity: i32) -> i32`: copies the start of the value, as much as fits;
 *  returns its full length. */
#define PINION_IMPORT_STATE_GET "state_get"

/** `state_put(field: i32, key: i32, key_len: i32, value: i32, len: i32) -> i32`: stores a value, whether or not there was one. */
#define PINION_IMPORT_STATE_PUT "state_put"

/** `state_cas(field: i32, key: i32, key_len: i32, expected: i32, expected_len: i32, value: i32, len: i32) -> i32`: stores a value if the
 *  stored value equals the expected one. An `expected_len` of `PINION_STATE_EXPECT_NONE` expects that there is no entry. */
#define PINION_IMPORT_STATE_CAS "state_cas"

/** `state_add(field: i32, key: i32, key_len: i32, delta: i64, sum: i32) -> i32`: adds to a number of 8 bytes, which counts as zero if there
 *  is none, and wraps around; writes the sum to memory. */
#define PINION_IMPORT_STATE_ADD "state_add"

/** `state_expire(field: i32, key: i32, key_len: i32, ttl_ms: i64) -> i32`: sets the entry's time to live in milliseconds. Zero ends the
 *  entry at once; a negative value keeps it without limit. */
#define PINION_IMPORT_STATE_EXPIRE "state_expire"

/** `state_delete(field: i32, key: i32, key_len: i32) -> i32`: removes an entry. */
#define PINION_IMPORT_STATE_DELETE "state_delete"

/** `key_open(name: i32, len: i32) -> i32`: returns the number of the stage's private key of that name. The only call for keys that is allowed in
 *  `pinion_init`. The number is the same in all instances. */
#define PINION_IMPORT_KEY_OPEN "key_open"

/** `key_sign(key: i32, scheme: i32, message: i32, len: i32, signature: i32, capacity: i32) -> i32`: signs a message by a scheme of TLS (RFC
 *  8446, section 4.2.3), and returns the signature's length, at most `PINION_KEY_SIGNATURE_BYTES_MAX`. The message is the content of a
 *  CertificateVerify of TLS 1.3 (section 4.4.3), or the randoms and the parameters of a ServerKeyExchange of TLS 1.2 with x25519, secp256r1
 *  or secp384r1 (RFC 8422, section 5.4); others get `pinion_errno.Refused`. The guest is suspended until another thread has signed. */
#define PINION_IMPORT_KEY_SIGN "key_sign"

/** `ticket_seal(key: i32, plain: i32, len: i32, sealed: i32, capacity: i32) -> i32`: seals the content of a session ticket, at most
 *  `PINION_TICKET_PLAIN_BYTES_MAX`, and returns the ticket's length, which is by `PINION_TICKET_OVERHEAD_BYTES` greater. All instances with this key open
 *  it, for six hours at least. */
#define PINION_IMPORT_TICKET_SEAL "ticket_seal"

/** `ticket_open(key: i32, sealed: i32, len: i32, plain: i32, capacity: i32) -> i32`: opens a session ticket, and returns its content's length.
 *  One that has expired, was forged, or is of another key gets `pinion_errno.Refused`. */
#define PINION_IMPORT_TICKET_OPEN "ticket_open"

/** Longest message that is signed, in bytes; no handshake has a longer one. */
#define PINION_KEY_MESSAGE_BYTES_MAX 256

/** Longest signature, in bytes. */
#define PINION_KEY_SIGNATURE_BYTES_MAX 512

/** Longest content of a session ticket, in bytes. */
#define PINION_TICKET_PLAIN_BYTES_MAX 4096

/** How many bytes longer a session ticket is than its content. */
#define PINION_TICKET_OVERHEAD_BYTES 32

/** Longest key of an entry, in bytes. */
#define PINION_STATE_KEY_BYTES_MAX 64

/** Longest value that a field may be declared with, in bytes. */
#define PINION_STATE_VALUE_BYTES_MAX 1024

/** The `expected_len` by which `PINION_IMPORT_STATE_CAS` expects that there is no entry. */
#define PINION_STATE_EXPECT_NONE (-1)

/** The result of `PINION_IMPORT_WAIT_UNTIL` when its deadline has passed and nothing has arrived. */
#define PINION_DEADLINE_PASSED (-1)

/** Longest log line kept, in bytes. */
#define PINION_LOG_LINE_BYTES_MAX 1024

/** Most random bytes that one call returns. */
#define PINION_RANDOM_BYTES_MAX 4096

/** Longest configuration a stage may have, in bytes. */
#define PINION_CONFIG_BYTES_MAX 65536

/** The finest granularity of `PINION_IMPORT_CLOCK`, and that of the SDK's tests. */
#define PINION_CLOCK_STEP_NS 1000ull

/** First word of a `pinion_pool_header`: `PIN1` in memory order. */
#define PINION_POOL_MAGIC 827214160

/** Slots a pool may have at most. */
#define PINION_SLOT_COUNT_MAX 1024

/** Smallest slot, in bytes: a full Ethernet frame (1,518) and the headroom, rounded up to cache lines. */
#define PINION_SLOT_SIZE_MIN 1600

/** Largest slot, in bytes: the limit of a descriptor's 16-bit offsets. */
#define PINION_SLOT_SIZE_MAX 32768

/** The address and the size of a slot are multiples of this: a cache line. */
#define PINION_SLOT_ALIGN 64

/** Bytes the host leaves free before a received frame, for a guest that prepends a header. */
#define PINION_RX_HEADROOM 64

/** Received: the device found the IPv4 header's checksum correct. */
#define PINION_RX_IP_CHECKSUM_GOOD 1

/** Received: the device found the IPv4 header's checksum wrong. */
#define PINION_RX_IP_CHECKSUM_BAD 2

/** Received: the device found the TCP or UDP checksum correct. */
#define PINION_RX_L4_CHECKSUM_GOOD 4

/** Received: the device found the TCP or UDP checksum wrong. */
#define PINION_RX_L4_CHECKSUM_BAD 8

/** Received: the chain has a way back, and the frame passes its stages forwards, from the first to the last. */
#define PINION_RX_FORWARD 16

/** Received: the chain has a way back, and the frame passes its stages backwards, from the last to the first. If neither of the two bits is
 *  set, the chain has no way back, or the frame is a message. */
#define PINION_RX_BACKWARD 32

/** Received, in a chain with a way back: the frame is another stage's reply (`PINION_PORT_REPLY`) to a frame that came in by this port, and goes
 *  towards that port. */
#define PINION_RX_REPLY 64

/** To send: the host computes the frame's checksums before the frame goes on: that of the IPv4 header, and that of TCP, UDP, ICMP or ICMPv6
 *  behind it or behind an IPv6 header. VLAN tags, IP options and extension headers may precede, and bytes behind the packet do not count. Of a
 *  fragment only the IPv4 header's is computed. A frame that is no whole packet of these goes on as it is. The time counts as the guest's. */
#define PINION_TX_CHECKSUM 32768

/** Transmit port: the stage's first output. By default it leads to the next stage of the chain, or out of the node after the last stage. If
 *  the chain gives the stage further outputs, these have the numbers from 1 on, below `PINION_OUTPUTS_MAX`. */
#define PINION_PORT_NEXT 0

/** Most outputs that a stage may have. */
#define PINION_OUTPUTS_MAX 16

/** Transmit port: back out of the packet's ingress port, past the rest of the chain. In a chain with a way back, through the stages between
 *  this stage and that port. */
#define PINION_PORT_REPLY 65534

/** Transmit port: drops the packet; the slot is returned. */
#define PINION_PORT_DROP 65535

/** The number of ways: each `pinion_descriptor.way` is below it. */
#define PINION_WAYS_MAX 128

/** EtherType of a message, one of those that IEEE 802 reserves for local experiments. A message is a frame that no device has received: it
 *  carries a call of the chain (`PINION_MESSAGE_HEADER_BYTES`).
 *
 *     0          12     14        15     16      24     28        32
 *     | addresses | type | version | zero | token | call | zero ... | payload, to the frame's end
 *
 *  Its answer is a frame with the same token and call, and another payload. The rest of the answer's header is ignored. The type is in
 *  network order, everything else little-endian. */
#define PINION_MESSAGE_ETHERTYPE 34997

/** The version of a message's header. */
#define PINION_MESSAGE_VERSION 1

/** Offset of the version in a message. */
#define PINION_MESSAGE_VERSION_AT 14

/** Offset of the token in a message. The token has 8 bytes, is good for one answer to this one message, and cannot be guessed. */
#define PINION_MESSAGE_TOKEN_AT 16

/** Offset of the call's number in a message. The number has 4 bytes; by it the node finds the waiting caller. */
#define PINION_MESSAGE_CALL_AT 24

/** Bytes of a message before its payload. */
#define PINION_MESSAGE_HEADER_BYTES 32

/** The longest payload of a message or an answer: what fits into a frame of 1,518 bytes, which fits into the smallest slot. */
#define PINION_MESSAGE_PAYLOAD_BYTES_MAX 1486

/** Describes a guest's packet memory. `pinion_pool` returns its address; the host reads it once. */
struct pinion_pool_header {
    /** `PINION_POOL_MAGIC`. */
    uint32_t magic __attribute__((aligned(4)));
    /** Slots in the pool, from 1 to `PINION_SLOT_COUNT_MAX`. */
    uint32_t slot_count;
    /** Bytes per slot, a multiple of `PINION_SLOT_ALIGN` from `PINION_SLOT_SIZE_MIN` to `PINION_SLOT_SIZE_MAX`. */
    uint32_t slot_size;
    /** Address of slot 0, a multiple of `PINION_SLOT_ALIGN`. */
    uint32_t slots;
    /** Entries of each ring: a power of two, at least `slot_count`. */
    uint32_t ring_entries;
    /** Address of the receive ring: a `pinion_ring_header` and `ring_entries` descriptors after it. */
    uint32_t rx_ring;
    /** Address of the transmit ring, of the same shape. */
    uint32_t tx_ring;
    /** The number of the guest's own slots, which are the last ones: fewer than `slot_count`. */
    uint32_t own_slots;
};

/** First word of a `pinion_metrics_header`: `PMT1` in memory order. */
#define PINION_METRICS_MAGIC 827608400

/** Most metrics that a module may have, and most of these that may have a `pinion_metric_text`. */
#define PINION_METRICS_MAX 128

/** See `PINION_METRICS_MAX`. */
#define PINION_METRIC_TEXTS_MAX 32

/** Longest name of a metric or of a label, in bytes. */
#define PINION_METRIC_NAME_BYTES_MAX 64

/** Longest help of a metric, in bytes. */
#define PINION_METRIC_HELP_BYTES_MAX 256

/** Most labels that a metric may have, and the longest text of all of them together, in bytes. */
#define PINION_METRIC_LABELS_MAX 8

/** See `PINION_METRIC_LABELS_MAX`. */
#define PINION_METRIC_LABELS_BYTES_MAX 512

/** Longest value of a label that changes, in bytes. */
#define PINION_METRIC_TEXT_BYTES_MAX 124

/** Labels that the node itself adds to every series. A metric must not have them. */
#define PINION_METRIC_LABELS_RESERVED "tenant", "chain", "stage", "module"

/** Describes a guest's metrics. `pinion_metrics` returns its address; the host reads it, and everything that it points to, once. */
struct pinion_metrics_header {
    /** `PINION_METRICS_MAGIC`. */
    uint32_t magic __attribute__((aligned(4)));
    /** Number of metrics, up to `PINION_METRICS_MAX`. */
    uint32_t count;
    /** Address of the first `pinion_metric_entry`; the others follow it. */
    uint32_t entries;
    /** Zero. */
    uint32_t reserved;
};

/** A counter or a gauge. No two metrics of a guest may have both the same name and the same labels. Nothing that is described here may lie
 *  in the pool's slots. */
struct pinion_metric_entry {
    /** A `pinion_metric_kind`. */
    uint32_t kind __attribute__((aligned(4)));
    /** Address of its value, a multiple of 8: for a counter a `u64` that only grows, for a gauge an `i64`. */
    uint32_t value;
    /** Address of its name, in the form that Prometheus requires: `[a-zA-Z_:][a-zA-Z0-9_:]*`. A gauge's name must not end in `_total`,
     *  which the node appends to the names of counters. */
    uint32_t name;
    /** Bytes of its name, up to `PINION_METRIC_NAME_BYTES_MAX`. */
    uint32_t name_len;
    /** Address of its help text, a sentence on what it counts, in one line of UTF-8. */
    uint32_t help;
    /** Bytes of the help text, up to `PINION_METRIC_HELP_BYTES_MAX`. */
    uint32_t help_len;
    /** Address of its labels, one per line: `name=value`, in UTF-8, with a line feed between two of them. Names match
     *  `[a-zA-Z_][a-zA-Z0-9_]*`, do not begin with `__`, and are not in `PINION_METRIC_LABELS_RESERVED`. */
    uint32_t labels;
    /** Bytes of its labels, up to `PINION_METRIC_LABELS_BYTES_MAX`; 0 for none. */
    uint32_t labels_len;
    /** For a gauge with a label that changes: address of a `pinion_metric_text`, a multiple of 4, that holds the value of the last label. That
     *  label's line is the name alone. While the text is empty, the series does not exist. Otherwise 0. */
    uint32_t text;
    /** Zero. */
    uint32_t reserved;
};

/** A label's value, which the guest may change at any time. */
struct pinion_metric_text {
    /** Its length in bytes. A length over `PINION_METRIC_TEXT_BYTES_MAX` counts as `PINION_METRIC_TEXT_BYTES_MAX`. */
    uint32_t len __attribute__((aligned(4)));
    /** UTF-8. */
    uint8_t bytes[PINION_METRIC_TEXT_BYTES_MAX];
};

/** The kind of a metric. */
enum pinion_metric_kind {
    /** Only grows. The node shows the sum over all instances, and the values of instances that have ended stay in the sum. */
    PINION_METRIC_KIND_COUNTER = 1,
    /** Goes up and down. The node shows the sum over all instances that exist. */
    PINION_METRIC_KIND_GAUGE = 2,
};

/** The start of a ring. Indices count up forever and wrap at 2^32; an entry's position is its index modulo `ring_entries`. The producer
 *  owns `tail`, the consumer owns `head`. */
struct pinion_ring_header {
    /** Index of the next entry to be consumed. */
    uint32_t head __attribute__((aligned(16)));
    /** Index of the next entry to be produced. */
    uint32_t tail;
    /** Zero. */
    uint32_t reserved[2];
};

/** One packet in a slot. */
struct pinion_descriptor {
    /** Index of the slot. */
    uint16_t slot __attribute__((aligned(4)));
    /** Offset of the frame in the slot, in bytes. */
    uint16_t offset;
    /** The frame's length, in bytes. Received: 0 if this returns one of the guest's own slots. */
    uint16_t len;
    /** Received: index of the node's ingress port. To send: `PINION_PORT_NEXT` or another of the stage's outputs, `PINION_PORT_REPLY` or
     *  `PINION_PORT_DROP`. */
    uint16_t port;
    /** Received: the results of the device that received the frame, `PINION_RX_IP_CHECKSUM_GOOD` and the others. A bit is clear if the device
     *  does not report it, or if another stage sent the frame. In a chain with a way back also the frame's direction, `PINION_RX_FORWARD` or
     *  `PINION_RX_BACKWARD`, by the host's own record, whichever stage sent it. To send: `PINION_TX_CHECKSUM` or zero. */
    uint16_t flags;
    /** Received: an index, below `PINION_WAYS_MAX`, for the way by which the frame came: the port of ingress and, in a chain with a way back, the
     *  direction. To send from one of the guest's own slots: the way of a frame that was received before. From any other slot the host's
     *  own record counts, and this is ignored. */
    uint16_t way;
    /** Received: when the frame came into the chain, in microseconds of `PINION_IMPORT_CLOCK`, of which these are the lowest 32 bits. It is as
     *  coarse as that clock. Of a frame that waited for longer than 8 s to be published, it may be later than that. To send: zero. */
    uint32_t arrived;
};

/** Severity of a log line. */
enum pinion_log_level {
    /** Something the tenant must act on. */
    PINION_LOG_LEVEL_ERROR = 1,
    /** Something the tenant should know. */
    PINION_LOG_LEVEL_WARN = 2,
    /** An event of normal operation. */
    PINION_LOG_LEVEL_INFO = 3,
    /** Details that help to find a fault. */
    PINION_LOG_LEVEL_DEBUG = 4,
};

/** The result of `pinion_init`. */
enum pinion_init_status {
    /** Ready to run. */
    PINION_INIT_STATUS_READY = 0,
    /** The configuration was refused; the log says why. */
    PINION_INIT_STATUS_CONFIG_REFUSED = 1,
};

/** The result of host calls that can be refused. */
enum pinion_errno {
    /** Done. */
    PINION_ERRNO_OK = 0,
    /** An address range lies outside the guest's memory. */
    PINION_ERRNO_FAULT = 1,
    /** A length exceeds the call's limit, or the limit on what all calls of one turn may move together. In the latter case a loop may try
     *  again. */
    PINION_ERRNO_TOO_LONG = 2,
    /** State: another instance is using the entry; state and keys: this turn's calls have moved as much as they may. The turn ends at the next loop or
     *  function boundary, and the caller must try again in a loop. */
    PINION_ERRNO_AGAIN = 3,
    /** State, keys: not allowed in `pinion_init`, as all instances share its result; signatures also before the first wait. */
    PINION_ERRNO_NOT_NOW = 4,
    /** State: the stage may only read this field. */
    PINION_ERRNO_DENIED = 5,
    /** State: the stage was granted no field of this name or number. */
    PINION_ERRNO_NO_FIELD = 6,
    /** State: nothing is stored under this key. */
    PINION_ERRNO_NO_ENTRY = 7,
    /** State: the field has no room for another entry. */
    PINION_ERRNO_FULL = 8,
    /** State: the stored value is not the expected one, or is not a number of 8 bytes. */
    PINION_ERRNO_MISMATCH = 9,
    /** Keys: the stage was granted no key of this name or number. */
    PINION_ERRNO_NO_KEY = 10,
    /** Keys: the message is nothing that a TLS server signs, or the key does not sign it by this scheme; or the ticket has expired, was forged,
     *  or is of another key. */
    PINION_ERRNO_REFUSED = 11,
    /** Keys: the tenant asks for more than it may, or the host failed. Later it may be possible. */
    PINION_ERRNO_BUSY = 12,
};

/* The calls themselves, as WebAssembly has them. */
#if defined(__wasm__)
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_WAIT)))
int32_t pinion_import_wait(void);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_WAIT_UNTIL)))
int32_t pinion_import_wait_until(int64_t deadline_ns);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_YIELD)))
void pinion_import_yield(void);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_LOG)))
void pinion_import_log(int32_t level, int32_t ptr, int32_t len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_CLOCK)))
int64_t pinion_import_clock(void);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_RANDOM)))
int32_t pinion_import_random(int32_t ptr, int32_t len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_CONFIG)))
int32_t pinion_import_config(int32_t ptr, int32_t capacity);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_KEEP_ALIVE_UNTIL)))
int64_t pinion_import_keep_alive_until(int64_t until_ns);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_PANIC)))
void pinion_import_panic(int32_t ptr, int32_t len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_STATE_OPEN)))
int32_t pinion_import_state_open(int32_t name, int32_t len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_STATE_GET)))
int32_t pinion_import_state_get(int32_t field, int32_t key, int32_t key_len, int32_t value, int32_t capacity);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_STATE_PUT)))
int32_t pinion_import_state_put(int32_t field, int32_t key, int32_t key_len, int32_t value, int32_t len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_STATE_CAS)))
int32_t pinion_import_state_cas(int32_t field, int32_t key, int32_t key_len, int32_t expected, int32_t expected_len, int32_t value, int32_t len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_STATE_ADD)))
int32_t pinion_import_state_add(int32_t field, int32_t key, int32_t key_len, int64_t delta, int32_t sum);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_STATE_EXPIRE)))
int32_t pinion_import_state_expire(int32_t field, int32_t key, int32_t key_len, int64_t ttl_ms);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_STATE_DELETE)))
int32_t pinion_import_state_delete(int32_t field, int32_t key, int32_t key_len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_KEY_OPEN)))
int32_t pinion_import_key_open(int32_t name, int32_t len);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_KEY_SIGN)))
int32_t pinion_import_key_sign(int32_t key, int32_t scheme, int32_t message, int32_t len, int32_t signature, int32_t capacity);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_TICKET_SEAL)))
int32_t pinion_import_ticket_seal(int32_t key, int32_t plain, int32_t len, int32_t sealed, int32_t capacity);
__attribute__((import_module(PINION_IMPORT_MODULE), import_name(PINION_IMPORT_TICKET_OPEN)))
int32_t pinion_import_ticket_open(int32_t key, int32_t sealed, int32_t len, int32_t plain, int32_t capacity);
#endif

#endif
