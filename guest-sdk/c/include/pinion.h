/* The SDK for Pinion functions in C.
 *
 * A function is a few callbacks, given once to PINION_FUNCTION. Each packet lies in a slot of the module's own memory, and is read and
 * changed in place. The function decides about each packet by pinion_send (on along the chain), pinion_reply (back to its ingress port) or
 * pinion_drop. A packet for which a callback calls none of these is dropped when the callback returns, so no slot is ever lost.
 *
 *     #include <pinion.h>
 *
 *     static void handle(pinion_packet *packet)
 *     {
 *         if (pinion_len(packet) >= 60)
 *             pinion_send(packet);
 *     }
 *
 *     PINION_FUNCTION(.packet = handle);
 *
 * Nothing here is safe for several threads, as a module has only one. If the library finds an error of the function, such as sending a
 * packet twice, it ends the instance as pinion_panic does; other instances are not affected. */
#ifndef PINION_H
#define PINION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pinion/abi.h>
#include <pinion/checksum.h>
#include <pinion/headers.h>
#include <pinion/metrics.h>
#include <pinion/nn.h>
#include <pinion/state.h>

/** Bytes of a slot. The node leaves 64 free before a received frame, so a frame can have 2,048. The size is an odd number of cache
 *  lines: slots at addresses a power of two apart would share few sets of a processor's caches. */
#define PINION_SLOT_SIZE 2112u

/** Most bytes of a packet that a function makes: as many as a received packet can have. */
#define PINION_PACKET_BYTES_MAX (PINION_SLOT_SIZE - PINION_RX_HEADROOM)

/** Slots of a pool unless PINION_FUNCTION_WITH_SLOTS says otherwise. */
#define PINION_SLOT_COUNT_DEFAULT 256

/** Most packets in a batch. */
#define PINION_BATCH_PACKETS_MAX 64u

/** The time that never comes, for pinion_wake_at and pinion_state_expire. */
#define PINION_NEVER UINT64_MAX

/** Levels of pinion_log. */
#define PINION_ERROR PINION_LOG_LEVEL_ERROR
#define PINION_WARN PINION_LOG_LEVEL_WARN
#define PINION_INFO PINION_LOG_LEVEL_INFO
#define PINION_DEBUG PINION_LOG_LEVEL_DEBUG

/** The way by which a packet came: its ingress port and, in a chain with a way back, its direction. A packet that the function makes goes by
 *  such a way: as a reply out of that port, and by the stage's outputs in that direction. A way is learned from a packet and stays valid as
 *  long as the instance. The field is private to the library. */
typedef struct pinion_way {
    /* The port, and in the lower half the node's number of the way. */
    uint32_t bits_;
} pinion_way;

/** Returns whether two ways are the same. */
static inline bool pinion_same_way(pinion_way one, pinion_way other)
{
    return one.bits_ == other.bits_;
}

/** One frame, from its Ethernet header on, in a slot of its own. The fields are private to the library; use the calls below. The pointer
 *  is valid until the packet is sent or dropped; after that the slot, and this record, belong to another packet. */
typedef struct pinion_packet {
    uint8_t *slot_;
    uint16_t offset_;
    uint16_t len_;
    pinion_way way_;
    uint32_t arrived_us_;
    uint16_t flags_;
    uint8_t state_;
} pinion_packet;

/** The callbacks of a function. Exactly one of `packet`, `batch` and `run` must be set. */
struct pinion_function {
    /** Prepares the function from its configuration: the bytes that its stage has in the chain's manifest, followed by a zero that is not
     *  counted in the length. The bytes stay valid. Returns zero if the function is ready. Otherwise the configuration is refused, and
     *  pinion_refuse gives the reason.
     *
     *  Runs once, when the module is built into a template, and not for each client: every instance starts from a snapshot of the memory
     *  that this call leaves behind. So expensive tables belong here, and values that must differ between instances do not: no random
     *  keys, no start time. Without this callback a configuration that is not empty is refused. */
    int (*init)(const uint8_t *config, size_t len);
    /** Called once in each instance, before its first packet: draw random keys here. */
    void (*start)(void);
    /** Handles a packet. */
    void (*packet)(pinion_packet *packet);
    /** Handles the packets that have arrived, at most PINION_BATCH_PACKETS_MAX of them, in order of arrival; used instead of `packet`. */
    void (*batch)(pinion_packet *const *packets, size_t count);
    /** Called when the time of pinion_wake_at has come, even while packets keep arriving. */
    void (*expire)(void);
    /** The function itself, instead of `packet`, `batch` and `expire`: a loop that waits by pinion_wait and pinion_wait_until. It suits
     *  functions that are best written as a sequence of steps, such as a dialogue. Called once in each instance. When it returns, the
     *  packets that it has sent go out and the instance ends, which is not a failure. An instance that is prepared for a future client
     *  is in its first wait, so `run` must reach that soon. The first wait ends with the instance's first packet, whatever its deadline. */
    void (*run)(void);
    /** The number of the module's slots that are for packets which the function makes itself: pinion_make, pinion_clone. So many fewer
     *  packets can be received at once. */
    uint16_t own_slots;
};

/* --- What becomes of a packet: one of these, once. ----------------------------------------------------------------------------------- */

/** Sends the packet by the stage's first output: to the next stage of the chain, or out of the node after the last, unless the chain's
 *  manifest says otherwise. */
void pinion_send(pinion_packet *packet);
/** Sends the packet by one of the stage's outputs, numbered as the chain's manifest lists them: 0 is the output of pinion_send. If the
 *  chain does not give the stage this output, the node ends the instance and reports the reason. */
void pinion_send_to(pinion_packet *packet, uint16_t output);
/** Sends the packet back out of its ingress port, past the rest of the chain. Swapping the addresses is left to the function. */
void pinion_reply(pinion_packet *packet);
/** Drops the packet. */
void pinion_drop(pinion_packet *packet);
/** Keeps the packet for later. The packet stays the function's, unchanged, until any callback sends or drops it. Its slot stays in use
 *  meanwhile: a function that holds all of its slots gets no more packets. */
void pinion_hold(pinion_packet *packet);

/* --- What a packet is. --------------------------------------------------------------------------------------------------------------- */

/* Ends the instance, because the packet is no longer the function's. */
void pinion_not_yours_(const pinion_packet *packet) __attribute__((noreturn));

/* Ends the instance unless the packet is the function's. */
static inline void pinion_check_(const pinion_packet *packet)
{
    if (__builtin_expect(packet->state_ < 2, 0))
        pinion_not_yours_(packet);
}

/** Returns the frame, pinion_len bytes, which may be read and changed in place. */
static inline uint8_t *pinion_data(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->slot_ + packet->offset_;
}

/** Returns the frame's length in bytes. */
static inline size_t pinion_len(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->len_;
}

/** Returns the index of the packet's ingress port. A reply of a later stage has the port of the packet that it replies to: in a chain
 *  with a way back, pinion_direction_of says which direction a packet comes from. */
static inline uint16_t pinion_ingress_port(const pinion_packet *packet)
{
    pinion_check_(packet);
    return (uint16_t)(packet->way_.bits_ >> 16);
}

/** Returns the way by which the packet came, for pinion_make. Of a packet that the function has made, the way that it was given. */
static inline pinion_way pinion_way_of(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->way_;
}

/** Returns when the packet came into the chain: the lowest 32 bits of the microseconds of pinion_now_ns, in the same steps as that clock.
 *  All stages are told the same time. It wraps around after 71 minutes, so compare such times by their difference, or see
 *  pinion_arrived_ns. Of a packet that the function has made, 0.
 *
 *  The node notes the time when it moves the packet to the first stage. A packet that then waits for its function for more than 8 s may
 *  seem to have come later. */
static inline uint32_t pinion_arrived_us(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->arrived_us_;
}

/** Returns when the packet came into the chain, in nanoseconds of pinion_now_ns, by the present time `now_ns` of that clock. The packet may
 *  be held for up to 71 minutes. */
static inline uint64_t pinion_arrived_ns(const pinion_packet *packet, uint64_t now_ns)
{
    const uint64_t now_us = now_ns / 1000, age_us = (uint32_t)now_us - pinion_arrived_us(packet);
    return age_us < now_us ? (now_us - age_us) * 1000 : 0;
}

/** The direction of a packet through a chain with a way back (`reverse` in its manifest). */
enum pinion_direction {
    /** The chain has no way back, or the packet is a message, or the function has made it. */
    PINION_DIRECTION_NONE,
    /** From the first stage to the last. */
    PINION_DIRECTION_FORWARD,
    /** From the last stage to the first: packets that came in by a port of `reverse.from`, and replies to packets that go forwards. */
    PINION_DIRECTION_BACKWARD,
};

/** Returns the packet's direction through its chain, by the node's own record. */
static inline enum pinion_direction pinion_direction_of(const pinion_packet *packet)
{
    pinion_check_(packet);
    switch (packet->flags_ & (PINION_RX_FORWARD | PINION_RX_BACKWARD)) {
    case PINION_RX_FORWARD:
        return PINION_DIRECTION_FORWARD;
    case PINION_RX_BACKWARD:
        return PINION_DIRECTION_BACKWARD;
    default:
        return PINION_DIRECTION_NONE;
    }
}

/** Returns whether the packet is a reply, in a chain with a way back: another stage made it, or sent it back, in answer to a packet that
 *  came in by this port. */
static inline bool pinion_is_reply(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->flags_ & PINION_RX_REPLY;
}

/** Returns the bytes free before the frame, which pinion_prepend can use. */
static inline size_t pinion_headroom(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->offset_;
}

/** Returns the bytes free after the frame, which pinion_set_len can use. */
static inline size_t pinion_tailroom(const pinion_packet *packet)
{
    pinion_check_(packet);
    return PINION_SLOT_SIZE - packet->offset_ - packet->len_;
}

/** The result of the receiving device's check of a checksum. */
enum pinion_found {
    /** The device does not report it, or the packet was sent by the chain's previous stage. */
    PINION_FOUND_NOTHING,
    /** The checksum is correct. */
    PINION_FOUND_GOOD,
    /** The checksum is wrong. */
    PINION_FOUND_BAD,
};

/** Returns what the device reported on the IPv4 header's checksum when the packet was received. */
enum pinion_found pinion_ip_checksum(const pinion_packet *packet);
/** Returns what the device reported on the TCP or UDP checksum when the packet was received. If it is good, a function need not compute
 *  it to check it. */
enum pinion_found pinion_l4_checksum(const pinion_packet *packet);

/** Lets the node compute the packet's checksums when it is sent: of the IPv4 header, and of TCP, UDP, ICMP or ICMPv6. What these fields
 *  contain does not matter then. VLAN tags, IP options and extension headers are skipped. Of a fragment only the IPv4 header's checksum is
 *  computed, and a frame that is no whole packet is sent as it is. */
void pinion_complete_checksums(pinion_packet *packet);

/** Truncates the frame, or extends it by zeroes. Returns false if the slot has no room for so many bytes; the packet is then unchanged. */
bool pinion_set_len(pinion_packet *packet, size_t len);
/** Extends the frame by `count` zeroes at its front, where the caller can write a header. Returns false if there is less headroom. */
bool pinion_prepend(pinion_packet *packet, size_t count);
/** Removes `count` bytes from the frame's front. Returns false if the frame is shorter than that. */
bool pinion_trim_front(pinion_packet *packet, size_t count);

/** Reads the packet's headers. Returns PINION_READABLE, or why they cannot be read. */
static inline enum pinion_unreadable pinion_headers(const pinion_packet *packet, struct pinion_headers *headers)
{
    return pinion_headers_of(pinion_data(packet), packet->len_, headers);
}

/* --- Packets that the function makes. ------------------------------------------------------------------------------------------------ */

/** Makes a packet of these bytes in one of the function's own slots, with as much headroom as a received packet has. If `bytes` is NULL,
 *  the packet is of zeroes. The packet is the function's, as if held, until it is sent or dropped. Returns NULL if all own slots are in
 *  use, or if `len` is more than PINION_PACKET_BYTES_MAX. A slot returns some time after its packet was sent, with a later batch. The
 *  packet goes by the way of a packet that was received before: pinion_reply sends it out of that packet's ingress port. */
pinion_packet *pinion_make(const void *bytes, size_t len, pinion_way way);
/** Copies a packet, with the same way, into one of the function's own slots. Returns NULL if all of them are in use. */
pinion_packet *pinion_clone(const pinion_packet *packet);

/* --- Messages: packets by which a client calls the function and waits for its answer. ------------------------------------------------ */

/** Returns whether the packet is a message. If so, sets `payload` and `len` to the message's payload, which the function may change in
 *  place before it sends the message on. */
bool pinion_message(const pinion_packet *packet, uint8_t **payload, size_t *len);
/** Answers the message. Returns false if the packet is not a message, or if the answer is longer than PINION_MESSAGE_PAYLOAD_BYTES_MAX:
 *  the packet is then unchanged and still the function's. `payload` may lie within the packet. */
bool pinion_answer(pinion_packet *packet, const void *payload, size_t len);

/* --- Time. --------------------------------------------------------------------------------------------------------------------------- */

/** Returns the nanoseconds since some time in the past, in steps that the node's operator chooses: 100 us unless a finer clock is granted.
 *  Never goes back, and is behind by less than two steps. */
uint64_t pinion_now_ns(void);
/** Asks the node to call `expire` once, at this time of pinion_now_ns; PINION_NEVER cancels the request. Replaces the previous request.
 *  The node never calls before that clock shows it. On a core with nothing else to do, it calls a fraction of a millisecond late. If the
 *  time has passed already, `expire` runs as soon as possible. Call this in `start` or later: a request from `init` is forgotten. Before
 *  its first packet an instance waits only for that packet. In `run` the call has no effect: use pinion_wait_until there. */
void pinion_wake_at(uint64_t time_ns);

/** Asks the node not to end this instance for lack of packets before pinion_now_ns says `until_ns`. Returns the time until which the
 *  instance is kept, or 0 if it is not kept. The node ends an instance that got no packet for its chain's idle_timeout_ms, and its
 *  memory is lost. A function with longer timers calls this with the time until which it needs its memory. The latest call
 *  counts; a time that has passed ends the request. The operator's limits.keep_alive_max_s is the longest that an instance stays without
 *  a packet, and a later time is cut to it. In `init` the call has no effect. The call takes about ten nanoseconds: in a function that
 *  makes it with each batch, call only when the time has changed by a second or more. */
uint64_t pinion_keep_alive_until(uint64_t until_ns);

/* --- Waiting, by functions with a loop of their own: in `run`. ----------------------------------------------------------------------- */

/** Waits for at least one packet. Returns how many it has put into `packets`, in order of arrival. Packets sent so far go out. Packets
 *  of the previous wait that were neither sent nor held are dropped. */
size_t pinion_wait(pinion_packet *packets[PINION_BATCH_PACKETS_MAX]);
/** Waits like pinion_wait, but no longer than until `deadline_ns` of pinion_now_ns. Returns 0 if no packet has come by then. The time
 *  may have passed already; other instances get their turns all the same. Packets come before the deadline: where they keep arriving,
 *  the loop must look at the clock itself. */
size_t pinion_wait_until(pinion_packet *packets[PINION_BATCH_PACKETS_MAX], uint64_t deadline_ns);

/* --- Logging. ------------------------------------------------------------------------------------------------------------------------ */

/** Logs a line for the tenant, formatted as by printf and cut at 1,024 bytes. The node limits how many lines it keeps, so log sparingly
 *  where each packet passes. Output to stdout and stderr is logged as well, line by line and cut likewise: stdout as PINION_INFO, stderr
 *  as PINION_ERROR. */
void pinion_log(enum pinion_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Leaves out all lines of pinion_log above this level from now on. A call in `init`, by the configuration for example, holds in every
 *  instance. A line that is left out costs one comparison: its arguments are not evaluated. */
void pinion_log_up_to(enum pinion_log_level level);

/** The highest level that is compiled in. With `-DPINION_LOG_LEVEL_MAX=PINION_WARN` in a Makefile's CFLAGS, the module does not contain
 *  the lines above that level. */
#ifndef PINION_LOG_LEVEL_MAX
#define PINION_LOG_LEVEL_MAX PINION_DEBUG
#endif

extern enum pinion_log_level pinion_log_level_max_;

/** Returns whether lines of this level are logged, so that a caller can skip expensive preparation of a line. */
static inline bool pinion_log_is_on(enum pinion_log_level level)
{
    return level <= PINION_LOG_LEVEL_MAX && level <= pinion_log_level_max_;
}

/* Calls the function pinion_log if its level is on. */
#define pinion_log(level, ...) (pinion_log_is_on(level) ? (pinion_log)(level, __VA_ARGS__) : (void)0)

/** Logs why a configuration is refused. Returns the value that `init` must return then. */
int pinion_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Ends the instance and gives the reason, in a line formatted as by pinion_log. The tenant finds it in the report of the end, after `it
 *  panicked: `, and in the log. */
void pinion_panic(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* --- The rest. ----------------------------------------------------------------------------------------------------------------------- */

/** Fills memory with random bytes that are fit for keys. Not allowed in `init`, as every instance would have the same bytes: the module
 *  is refused for it. */
void pinion_random(void *bytes, size_t len);

/** Ends this instance, and with it its whole chain instance, after the current batch. Packets that were sent by then go out. Such an end
 *  is not a failure. A call in `start` makes the instance unusable. In `init` the call has no effect, nor in `run`, which returns
 *  instead. */
void pinion_finish(void);
/** Lets other instances of the same core run, and returns at this instance's next turn. A function need not call this. */
void pinion_yield(void);

/* --- The module. --------------------------------------------------------------------------------------------------------------------- */

/* A ring of `entry_count` entries, laid out as the contract says. */
#define PINION_RING_(entry_count)                                                                                                         \
    struct {                                                                                                                              \
        struct pinion_ring_header header;                                                                                                 \
        struct pinion_descriptor entries[entry_count];                                                                                    \
    }

/* A function and the memory of its packets, which is all zero until it is used. */
struct pinion_module_ {
    struct pinion_function function;
    uint32_t slot_count;
    uint8_t (*slots)[PINION_SLOT_SIZE];
    struct pinion_packet *packets;
    uint16_t *own_free;
    struct pinion_ring_header *rx;
    struct pinion_ring_header *tx;
};

extern const struct pinion_module_ pinion_module_;

/** Makes a module of a function, given by its callbacks as in `.packet = handle`. Use it once. */
#define PINION_FUNCTION(...) PINION_FUNCTION_WITH_SLOTS(PINION_SLOT_COUNT_DEFAULT, __VA_ARGS__)

/** Like PINION_FUNCTION, with another number of slots and so of packets that the module can hold at once: a power of two up to 1,024.
 *  The node's memory is used only for slots that have held packets. */
#define PINION_FUNCTION_WITH_SLOTS(count, ...)                                                                                            \
    _Static_assert((count) > 0 && ((count) & ((count) - 1)) == 0 && (count) <= PINION_SLOT_COUNT_MAX,                                     \
                   "the number of slots must be a power of two, at most 1024");                                                           \
    static uint8_t pinion_slots_[count][PINION_SLOT_SIZE] __attribute__((aligned(PINION_SLOT_ALIGN)));                                    \
    static PINION_RING_(count) pinion_rx_, pinion_tx_;                                                                                    \
    static struct pinion_packet pinion_packets_[count];                                                                                   \
    static uint16_t pinion_own_free_[count];                                                                                              \
    const struct pinion_module_ pinion_module_ = {                                                                                        \
        .function = {__VA_ARGS__},                                                                                                        \
        .slot_count = (count),                                                                                                            \
        .slots = pinion_slots_,                                                                                                           \
        .packets = pinion_packets_,                                                                                                       \
        .own_free = pinion_own_free_,                                                                                                     \
        .rx = &pinion_rx_.header,                                                                                                         \
        .tx = &pinion_tx_.header,                                                                                                         \
    }

#endif
