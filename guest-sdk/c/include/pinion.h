/* What a tenant writes a Pinion function in C with.
 *
 * A function is a few callbacks, given once to PINION_FUNCTION. Each packet lies in a slot of the module's own memory, and is read and
 * changed in place; what becomes of it is said by pinion_send (on along the chain), pinion_reply (back to where it came from) or
 * pinion_drop. A packet of which a callback has said nothing is dropped when it returns, so no slot is ever lost.
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
 * Everything is for one thread, as a module has but one. What the library finds to be a fault of the function's, such as sending a packet
 * twice, ends the instance as pinion_panic does: nobody else notices. */
#ifndef PINION_H
#define PINION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pinion/abi.h>
#include <pinion/checksum.h>
#include <pinion/headers.h>
#include <pinion/metrics.h>
#include <pinion/state.h>

/** Bytes of a slot. The node leaves 64 free before a received frame, so a frame can have 2,048. An odd number of cache lines: the starts of
 *  slots a power of two apart would share few places of a processor's caches. */
#define PINION_SLOT_SIZE 2112u

/** Bytes that a packet can have which a function makes: as many as one that comes in. */
#define PINION_PACKET_BYTES_MAX (PINION_SLOT_SIZE - PINION_RX_HEADROOM)

/** Slots of a pool unless PINION_FUNCTION_WITH_SLOTS says otherwise. */
#define PINION_SLOT_COUNT_DEFAULT 256

/** Most packets that a batch has. */
#define PINION_BATCH_PACKETS_MAX 64u

/** No time at all, for pinion_wake_at and pinion_state_expire. */
#define PINION_NEVER UINT64_MAX

/** Levels of pinion_log. */
#define PINION_ERROR PINION_LOG_LEVEL_ERROR
#define PINION_WARN PINION_LOG_LEVEL_WARN
#define PINION_INFO PINION_LOG_LEVEL_INFO
#define PINION_DEBUG PINION_LOG_LEVEL_DEBUG

/** One frame, from its Ethernet header on, in a slot of its own. What is in here is the library's, to be asked for by the calls below. The
 *  pointer is good until something has become of the packet; then the slot, and this, will be another packet's. */
typedef struct pinion_packet {
    uint8_t *slot_;
    uint16_t offset_;
    uint16_t len_;
    uint16_t port_;
    uint8_t state_;
    uint32_t flags_;
} pinion_packet;

/** What a function does. All but one of `packet`, `batch` and `run` may be left out. */
struct pinion_function {
    /** Prepares the function from its configuration: the bytes that its stage has in the chain's manifest, followed by a zero that does not
     *  count. They stay where they are. Zero if it is ready; if not, the configuration is refused, and pinion_refuse says why.
     *
     *  Runs once, when the module is built into a template and not for each client: every instance starts from a snapshot of the
     *  memory that this leaves behind. So expensive tables belong here, and nothing that must differ between instances does: no random
     *  keys, no time of start. Without this callback a configuration that is not empty is refused. */
    int (*init)(const uint8_t *config, size_t len);
    /** Called once in each instance, before its first packet: the place to draw random keys. */
    void (*start)(void);
    /** Handles a packet. */
    void (*packet)(pinion_packet *packet);
    /** Handles the packets that have arrived, at most PINION_BATCH_PACKETS_MAX of them, in order of arrival: instead of `packet`. */
    void (*batch)(pinion_packet *const *packets, size_t count);
    /** Called when the time of pinion_wake_at has come, however many packets come as well. */
    void (*expire)(void);
    /** The function itself, instead of `packet`, `batch` and `expire`: a loop that waits where it likes, by pinion_wait and pinion_wait_until. For
     *  what is told best as a sequence of steps, such as a dialogue. Called once in each instance; when it returns, what it has sent goes out
     *  and the instance ends, which is no failure. An instance that is ready for clients to come is in its first wait, which ends with its first
     *  packet whatever its deadline: so it is to come there soon. */
    void (*run)(void);
    /** Of the module's slots, how many are for packets that the function makes itself: pinion_make, pinion_clone. So many fewer can come in
     *  at once. */
    uint16_t own_slots;
};

/* --- What becomes of a packet: one of these, once. ----------------------------------------------------------------------------------- */

/** Sends the packet on by the stage's first output: to the next stage of the chain, or out of the node after the last, unless the chain
 *  says otherwise. */
void pinion_send(pinion_packet *packet);
/** Sends the packet on by one of the stage's outputs, as the chain's manifest lists them: 0 is that of pinion_send. For one that the chain
 *  does not give this stage the node ends the instance, and says so. */
void pinion_send_to(pinion_packet *packet, uint16_t output);
/** Sends the packet back out of the port that it came in by, past the rest of the chain. Turning addresses round is the function's task. */
void pinion_reply(pinion_packet *packet);
/** Drops the packet. */
void pinion_drop(pinion_packet *packet);
/** Keeps the packet for later: it stays the function's, and as it is, until it is sent or dropped, by whatever callback. Its slot stays taken
 *  meanwhile: a function with all of its slots in its hands gets no more packets. */
void pinion_hold(pinion_packet *packet);

/* --- What a packet is. --------------------------------------------------------------------------------------------------------------- */

/* Ends the instance: the packet is no longer the function's. */
void pinion_not_yours_(const pinion_packet *packet) __attribute__((noreturn));

/* Whether the packet is the function's. */
static inline void pinion_check_(const pinion_packet *packet)
{
    if (__builtin_expect(packet->state_ < 2, 0))
        pinion_not_yours_(packet);
}

/** The frame, to be read and changed in place: pinion_len bytes. */
static inline uint8_t *pinion_data(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->slot_ + packet->offset_;
}

/** The frame's length in bytes. */
static inline size_t pinion_len(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->len_;
}

/** Index of the node's port that the packet came in by. */
static inline uint16_t pinion_ingress_port(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->port_;
}

/** Bytes free before the frame: what pinion_prepend can give. */
static inline size_t pinion_headroom(const pinion_packet *packet)
{
    pinion_check_(packet);
    return packet->offset_;
}

/** Bytes free after the frame: what pinion_set_len can add. */
static inline size_t pinion_tailroom(const pinion_packet *packet)
{
    pinion_check_(packet);
    return PINION_SLOT_SIZE - packet->offset_ - packet->len_;
}

/** What the device that received a packet has found out about a checksum of it. */
enum pinion_found {
    /** The device does not tell, or the packet was sent by the chain's stage before. */
    PINION_FOUND_NOTHING,
    /** It is right. */
    PINION_FOUND_GOOD,
    /** It is wrong. */
    PINION_FOUND_BAD,
};

/** What is known of the IPv4 header's checksum as the packet was received. */
enum pinion_found pinion_ip_checksum(const pinion_packet *packet);
/** What is known of the TCP or UDP checksum as the packet was received: if it is good, a function need not compute it to check it. */
enum pinion_found pinion_l4_checksum(const pinion_packet *packet);

/** Cuts the frame's end off, or makes it longer by zeroes. False if the slot has no room for so many bytes; the packet is as it was. */
bool pinion_set_len(pinion_packet *packet, size_t len);
/** Makes the frame longer by `count` zeroes in front, for a header to be written there. False if there is less headroom. */
bool pinion_prepend(pinion_packet *packet, size_t count);
/** Cuts `count` bytes off the frame's front. False if it is shorter than that. */
bool pinion_trim_front(pinion_packet *packet, size_t count);

/** What the packet's headers say: PINION_READABLE, or why they cannot be read. */
static inline enum pinion_unreadable pinion_headers(const pinion_packet *packet, struct pinion_headers *headers)
{
    return pinion_headers_of(pinion_data(packet), packet->len_, headers);
}

/* --- Packets of the function's own. -------------------------------------------------------------------------------------------------- */

/** Makes a packet of these bytes in a slot of the function's own, with as much room before it as a received one has; of zeroes, if `bytes`
 *  is NULL. It is the function's, as if held, until it is sent or dropped. NULL if all own slots are in use, or the bytes are more
 *  than PINION_PACKET_BYTES_MAX: a slot comes back some time after its packet was sent, at a later batch. pinion_reply has it leave by the
 *  port that the last packet came in by. */
pinion_packet *pinion_make(const void *bytes, size_t len);
/** Another packet of the same bytes and the same port, in a slot of the function's own; NULL if all of them are in use. */
pinion_packet *pinion_clone(const pinion_packet *packet);

/* --- Messages: packets by which somebody calls the function, and waits for its answer. ----------------------------------------------- */

/** Whether the packet is a message. If so, `payload` and `len` are what was sent, to be changed in place if it is to be sent on. */
bool pinion_message(const pinion_packet *packet, uint8_t **payload, size_t *len);
/** Answers whoever sent the message. False if the packet is none, or the answer longer than PINION_MESSAGE_PAYLOAD_BYTES_MAX: then it is
 *  as it was, and still the function's. `payload` may lie within the packet. */
bool pinion_answer(pinion_packet *packet, const void *payload, size_t len);

/* --- Time. --------------------------------------------------------------------------------------------------------------------------- */

/** Nanoseconds since some moment in the past, in steps of a microsecond. Never goes back. */
uint64_t pinion_now_ns(void);
/** Has `expire` called at this time of pinion_now_ns, or PINION_NEVER: once, and instead of what was said before. The node calls no sooner
 *  than that, and on a core with nothing else to do a fraction of a millisecond later. A time that has passed is as good as the next
 *  moment. To be said by `start` or later: what is said by `init` is forgotten. Before its first packet an instance waits for that only. In
 *  `run` it does nothing: pinion_wait_until is for that. */
void pinion_wake_at(uint64_t time_ns);

/* --- Waiting, by functions that are a loop of their own: in `run`. ------------------------------------------------------------------- */

/** Waits for packets: at least one. How many there are in `packets` now, in order of arrival. What was sent so far goes out, and what came with the
 *  wait before, and of which nothing was said, is dropped. */
size_t pinion_wait(pinion_packet *packets[PINION_BATCH_PACKETS_MAX]);
/** The same until that time of pinion_now_ns: 0 if nothing has come by then. It may have passed already; others have their turns all the same.
 *  What has come is told first: where packets come all the time, it is for the loop to look at the clock. */
size_t pinion_wait_until(pinion_packet *packets[PINION_BATCH_PACKETS_MAX], uint64_t deadline_ns);

/* --- What the function says. --------------------------------------------------------------------------------------------------------- */

/** Logs a line for the tenant, formatted as by printf and cut at 1,024 bytes. The node limits how many lines it keeps; on the path of each
 *  packet, log sparingly. What is written to stdout and stderr is logged as well, line by line and cut likewise, the one as PINION_INFO, the
 *  other as PINION_ERROR. */
void pinion_log(enum pinion_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Leaves out all lines of pinion_log above this level from now on. Said in `init`, as the configuration has it, it is so in every instance.
 *  What is left out costs a comparison: its arguments are not even looked at. */
void pinion_log_up_to(enum pinion_log_level level);

/** The highest level that is compiled in: with `-DPINION_LOG_LEVEL_MAX=PINION_WARN` among a Makefile's CFLAGS, lines above are no part of the module
 *  at all. */
#ifndef PINION_LOG_LEVEL_MAX
#define PINION_LOG_LEVEL_MAX PINION_DEBUG
#endif

extern enum pinion_log_level pinion_log_level_max_;

/** Whether lines of this level are logged: for whoever prepares much for one. */
static inline bool pinion_log_is_on(enum pinion_log_level level)
{
    return level <= PINION_LOG_LEVEL_MAX && level <= pinion_log_level_max_;
}

/* The call above, where its level is on. */
#define pinion_log(level, ...) (pinion_log_is_on(level) ? (pinion_log)(level, __VA_ARGS__) : (void)0)

/** Says why a configuration is refused; what `init` is to return then. */
int pinion_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Ends the instance, and says why, in a line as one of pinion_log: its tenant finds it in the account of the end, as `it panicked: `, and in
 *  the log. */
void pinion_panic(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* --- The rest. ----------------------------------------------------------------------------------------------------------------------- */

/** Fills memory with random bytes, fit for keys. Not in `init`: every instance would have the same, and the module is refused for it. */
void pinion_random(void *bytes, size_t len);

/** Says that this instance is done: after the batch being handled it ends, and with it its whole chain instance. What has been sent by then
 *  goes out. To end like this is no failure. In `start` it makes the instance one that cannot be used; in `init` it does nothing, nor in
 *  `run`, which returns instead. */
void pinion_finish(void);
/** Lets other instances of the same core run, and returns at this instance's next turn. Nothing has to call this. */
void pinion_yield(void);

/* --- Making a module of it. ---------------------------------------------------------------------------------------------------------- */

/* A ring of so many entries, as the contract lays it out. */
#define PINION_RING_(entry_count)                                                                                                         \
    struct {                                                                                                                              \
        struct pinion_ring_header header;                                                                                                 \
        struct pinion_descriptor entries[entry_count];                                                                                    \
    }

/* A function, and the memory of its packets, all zero until it is used. */
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

/** Makes a module of a function, of callbacks as in `.packet = handle`. Used once. */
#define PINION_FUNCTION(...) PINION_FUNCTION_WITH_SLOTS(PINION_SLOT_COUNT_DEFAULT, __VA_ARGS__)

/** The same with another number of slots, hence of packets that the module can hold at once: a power of two up to 1,024. The node's memory
 *  is only used for slots that packets really came into. */
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
