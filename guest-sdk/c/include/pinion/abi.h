/* The contract between a guest and the node that runs it: written by `cargo run -p pinion-c-header` of guest-sdk/abi, where all of it is
 * explained. Not to be changed by hand. */
#ifndef PINION_ABI_H
#define PINION_ABI_H

#include <stdint.h>

/** The version of this contract. A module declares it by exporting a function named `PINION_EXPORT_ABI_PREFIX` followed
 *  by the number, so that it can be read without running the module. */
#define PINION_ABI_VERSION 2

/** Prefix of the marker export: `pinion_abi_v2` takes nothing, returns nothing and is never called. */
#define PINION_EXPORT_ABI_PREFIX "pinion_abi_v"

/** `pinion_init() -> i32`: reads the configuration and prepares the function; zero or an `pinion_init_status`. */
#define PINION_EXPORT_INIT "pinion_init"

/** `pinion_pool() -> i32`: the address of the guest's `pinion_pool_header`. Called once, after `pinion_init`. */
#define PINION_EXPORT_POOL "pinion_pool"

/** `pinion_run()`: the function itself, one call that lasts as long as the instance. When it returns, what is in the transmit ring is
 *  taken, and the instance ends. */
#define PINION_EXPORT_RUN "pinion_run"

/** The linear memory's export name. */
#define PINION_EXPORT_MEMORY "memory"

/** `_initialize()`: the reactor constructor of WASI modules, called first where it exists. */
#define PINION_EXPORT_INITIALIZE "_initialize"

/** The import module of everything Pinion offers itself. */
#define PINION_IMPORT_MODULE "pinion"

/** `wait() -> i32`: the number of new receive descriptors; on zero the rings are exchanged at the next boundary. */
#define PINION_IMPORT_WAIT "wait"

/** `wait_until(deadline_ns: i64) -> i32`: as `PINION_IMPORT_WAIT`, but `PINION_DEADLINE_PASSED` if the rings were exchanged since the last
 *  call that did not return zero, nothing has arrived, and `PINION_IMPORT_CLOCK` says `deadline_ns` or later. On zero the
 *  guest is to call again, with the same deadline or another. */
#define PINION_IMPORT_WAIT_UNTIL "wait_until"

/** `yield()`: let others run; returns at this instance's next turn, without exchanging rings. */
#define PINION_IMPORT_YIELD "yield"

/** `log(level: i32, ptr: i32, len: i32)`: one line of UTF-8 for the tenant's log, see `pinion_log_level`. Bounded by
 *  `PINION_LOG_LINE_BYTES_MAX`; what is longer is cut. */
#define PINION_IMPORT_LOG "log"

/** `clock() -> i64`: nanoseconds of a monotonic clock, in steps of `PINION_CLOCK_STEP_NS`. */
#define PINION_IMPORT_CLOCK "clock"

/** `random(ptr: i32, len: i32) -> i32`: fills memory with random bytes, at most `PINION_RANDOM_BYTES_MAX` a call; an
 *  `pinion_errno`. */
#define PINION_IMPORT_RANDOM "random"

/** `config(ptr: i32, capacity: i32) -> i32`: copies the start of the configuration, as much as fits; its full
 *  length. */
#define PINION_IMPORT_CONFIG "config"

/** What `PINION_IMPORT_WAIT_UNTIL` returns when its deadline has passed and nothing has arrived. */
#define PINION_DEADLINE_PASSED (-1)

/** Longest log line kept, in bytes. */
#define PINION_LOG_LINE_BYTES_MAX 1024

/** Most random bytes one call gives. */
#define PINION_RANDOM_BYTES_MAX 4096

/** Longest configuration a stage may have, in bytes. */
#define PINION_CONFIG_BYTES_MAX 65536

/** Granularity of `PINION_IMPORT_CLOCK`: coarse, so that it is of little use as a side channel's stop-watch. */
#define PINION_CLOCK_STEP_NS 1000ull

/** First word of a `pinion_pool_header`: `PIN1` in memory order. */
#define PINION_POOL_MAGIC 827214160

/** Slots a pool may have at most. */
#define PINION_SLOT_COUNT_MAX 1024

/** Smallest slot, in bytes: a full Ethernet frame (1,518) and the headroom, rounded up to cache lines. */
#define PINION_SLOT_SIZE_MIN 1600

/** Largest slot, in bytes: what a descriptor's 16-bit offsets can name. */
#define PINION_SLOT_SIZE_MAX 32768

/** Slots start on, and are sized in, multiples of this: a cache line. */
#define PINION_SLOT_ALIGN 64

/** Bytes the host leaves free before a received frame, for a guest that prepends a header. */
#define PINION_RX_HEADROOM 64

/** Received: the device has found the IPv4 header's checksum right. */
#define PINION_RX_IP_CHECKSUM_GOOD 1

/** Received: the device has found the IPv4 header's checksum wrong. */
#define PINION_RX_IP_CHECKSUM_BAD 2

/** Received: the device has found the TCP or UDP checksum right. */
#define PINION_RX_L4_CHECKSUM_GOOD 4

/** Received: the device has found the TCP or UDP checksum wrong. */
#define PINION_RX_L4_CHECKSUM_BAD 8

/** Transmit port: the stage's first output, by default the next stage of the chain, or out of the node after the last
 *  one. Further outputs, where the chain gives the stage any, are the numbers from 1 on, below `PINION_OUTPUTS_MAX`. */
#define PINION_PORT_NEXT 0

/** Outputs that a stage may have. */
#define PINION_OUTPUTS_MAX 16

/** Transmit port: back out of the port the packet came in by, past the rest of the chain. */
#define PINION_PORT_REPLY 65534

/** Transmit port: nowhere; the slot is given back. */
#define PINION_PORT_DROP 65535

/** EtherType of a message, of those that IEEE 802 leaves to local experiments. A message is a frame that no device has received:
 *  somebody invokes the chain (`PINION_MESSAGE_HEADER_BYTES`).
 *
 *     0          12     14        15     16      24     28        32
 *     | addresses | type | version | zero | token | call | zero ... | payload, to the frame's end
 *
 *  Its answer is a frame that has the same token and call, and another payload; what else is in its header is not looked at. Type is in
 *  network order, all else little-endian. */
#define PINION_MESSAGE_ETHERTYPE 34997

/** The version of a message's header. */
#define PINION_MESSAGE_VERSION 1

/** Where in a message the version is. */
#define PINION_MESSAGE_VERSION_AT 14

/** Where in a message the token is, 8 bytes: good for one answer to this one message, and not to be guessed. */
#define PINION_MESSAGE_TOKEN_AT 16

/** Where in a message the call's number is, 4 bytes, by which the node finds who waits. */
#define PINION_MESSAGE_CALL_AT 24

/** Bytes of a message before its payload. */
#define PINION_MESSAGE_HEADER_BYTES 32

/** The longest payload of a message or an answer: what a frame of 1,518 bytes holds, which fits into the smallest slot. */
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
    /** How many slots are the guest's own, the last ones: fewer than `slot_count`. */
    uint32_t own_slots;
};

/** The start of a ring. Indices count up for ever and wrap at 2^32; an entry's place is its index modulo
 *  `ring_entries`. The producer owns `tail`, the consumer owns `head`. */
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
    /** Which slot. */
    uint16_t slot __attribute__((aligned(4)));
    /** Where in the slot the frame starts, in bytes. */
    uint16_t offset;
    /** The frame's length, in bytes. Received: 0 for a slot of the guest's own that comes back. */
    uint16_t len;
    /** Received: index of the node's port it came in by. To send: `PINION_PORT_NEXT` or another of the
     *  stage's outputs, `PINION_PORT_REPLY` or `PINION_PORT_DROP`. */
    uint16_t port;
    /** Received: what the device that received the frame has found out, `PINION_RX_IP_CHECKSUM_GOOD` and the others; nothing of
     *  what it does not tell, nor of frames that another stage sent. To send: zero. */
    uint32_t flags;
    /** Zero. */
    uint32_t reserved;
};

/** Severity of a log line. */
enum pinion_log_level {
    /** Something the tenant must act on. */
    PINION_LOG_LEVEL_ERROR = 1,
    /** Something the tenant should know. */
    PINION_LOG_LEVEL_WARN = 2,
    /** What happens in the normal course. */
    PINION_LOG_LEVEL_INFO = 3,
    /** What helps to find a fault. */
    PINION_LOG_LEVEL_DEBUG = 4,
};

/** What `pinion_init` returns. */
enum pinion_init_status {
    /** Ready to run. */
    PINION_INIT_STATUS_READY = 0,
    /** The configuration was refused; the log says why. */
    PINION_INIT_STATUS_CONFIG_REFUSED = 1,
};

/** What host calls that can be refused return. */
enum pinion_errno {
    /** Done. */
    PINION_ERRNO_OK = 0,
    /** An address range lies outside the guest's memory. */
    PINION_ERRNO_FAULT = 1,
    /** A length is over the call's bound, or over what all calls of one turn may move together: a loop may try again. */
    PINION_ERRNO_TOO_LONG = 2,
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
#endif

#endif
