/* State: data that outlives an instance, or that instances share. The node stores it as entries of fields, by key.
 *
 * A field is declared in the manifest, and granted to a stage to read or to write. All instances of all the tenant's chains that were
 * granted a field of one name see the same entries. So one function may write entries that another may only read, and an instance can use
 * what an earlier one has stored.
 *
 *     [state.sessions]
 *     value_bytes = 8
 *     entries = 10000
 *     ttl_seconds = 300       # from when an entry was written; without it, entries stay
 *     when_full = "refuse"    # or "evict": the entry goes that was not written to for longest
 *
 *     [[chain]]
 *     name = "limit"
 *     stage = [{ module = "limit", state = { sessions = "write" } }]
 *
 * A function that lets 100 packets of each sender pass:
 *
 *     static pinion_field sessions;
 *
 *     static int prepare(const uint8_t *config, size_t len)
 *     {
 *         return pinion_state_open(&sessions, "sessions");
 *     }
 *
 *     static void handle(pinion_packet *packet)
 *     {
 *         struct pinion_headers headers;
 *         int64_t count;
 *         if (pinion_headers(packet, &headers) == PINION_READABLE
 *             && pinion_state_add(sessions, headers.source, sizeof headers.source, 1, &count) == PINION_STATE_DONE && count <= 100)
 *             pinion_send(packet);
 *     }
 *
 * Keys and values are bytes. A key has at most PINION_STATE_KEY_BYTES_MAX. A value has at most as many as its field is declared with, which
 * is at most PINION_STATE_VALUE_BYTES_MAX. An update in several steps reads the value and stores the new one only if the old one has not
 * changed (pinion_state_compare_and_swap); pinion_state_add adds to a number in one step.
 *
 * An entry exists until it is deleted, its time to live is over, no chain that declares its field is left, or the node ends. A call
 * takes a few hundred nanoseconds, more if the entry is in no cache. Its time is bounded like that of all calls: if another instance
 * uses the same entry for too long, this instance yields and tries again, without the function noticing. */
#ifndef PINION_STATE_H
#define PINION_STATE_H

#include <stddef.h>
#include <stdint.h>

#include <pinion/abi.h>

/** The result of a call. With any result other than PINION_STATE_DONE, the stored data is unchanged. */
enum pinion_state {
    /** The call succeeded. */
    PINION_STATE_DONE,
    /** Nothing is stored under this key. */
    PINION_STATE_NO_ENTRY,
    /** The stored value is not the one that pinion_state_compare_and_swap expected. */
    PINION_STATE_UNEXPECTED,
    /** The stored value does not have the requested length. */
    PINION_STATE_OTHER_LENGTH,
    /** The key is longer than PINION_STATE_KEY_BYTES_MAX, or the value is longer than the field is declared with. */
    PINION_STATE_TOO_LONG,
    /** The field has no room for another entry. */
    PINION_STATE_FULL,
    /** The stage may only read the field. */
    PINION_STATE_DENIED,
    /** The stage was granted no field of this name; or the field was never opened. */
    PINION_STATE_NO_FIELD,
    /** Not allowed in `init`: all instances share its result. */
    PINION_STATE_NOT_NOW,
};

/** Returns a sentence that describes the result, for the log. */
const char *pinion_state_sentence(enum pinion_state state);

/** A field that the stage was granted: a number that may be copied. The member is private to the library. */
typedef struct pinion_field {
    /* The node's number plus one, so that zeroed memory is a field that was never opened. */
    int32_t number_;
} pinion_field;

/** Opens the field of this name. Returns zero. If the stage was not granted the field, logs a line that names it, and returns the value
 *  that `init` must return: then a chain that does not grant the field is refused when it is applied. */
int pinion_state_open(pinion_field *field, const char *name);

/** Copies the value stored under a key to `value`, up to `capacity` bytes. Sets `len`, which may be NULL, to the value's full length in
 *  bytes. If there is no entry, `len` is unchanged. */
enum pinion_state pinion_state_get(pinion_field field, const void *key, size_t key_len, void *value, size_t capacity, size_t *len);

/** Like pinion_state_get, for a value of exactly `len` bytes, such as a struct or a number. Returns PINION_STATE_OTHER_LENGTH if the
 *  stored value has another length; the contents of `value` are then meaningless. */
enum pinion_state pinion_state_get_exactly(pinion_field field, const void *key, size_t key_len, void *value, size_t len);

/** Stores a value under a key, whether or not there was one. Its time to live starts again. */
enum pinion_state pinion_state_put(pinion_field field, const void *key, size_t key_len, const void *value, size_t len);

/** Stores a value under a key if the stored value equals `expected`, byte by byte, or, if `expected` is NULL, if there is no entry. The
 *  time to live then starts again. Otherwise returns PINION_STATE_UNEXPECTED. */
enum pinion_state pinion_state_compare_and_swap(pinion_field field, const void *key, size_t key_len, const void *expected, size_t expected_len,
                                                const void *value, size_t len);

/** Adds to the number under a key: 8 bytes, little-endian, zero if there is no entry. It wraps around at its ends. Sets `sum`, which may
 *  be NULL, to the result. The time to live of an existing entry continues. Returns PINION_STATE_OTHER_LENGTH if the value does not have
 *  8 bytes. */
enum pinion_state pinion_state_add(pinion_field field, const void *key, size_t key_len, int64_t delta, int64_t *sum);

/** Sets an entry's time to live in milliseconds: 0 ends it at once, PINION_NEVER keeps it without limit. */
enum pinion_state pinion_state_expire(pinion_field field, const void *key, size_t key_len, uint64_t after_ms);

/** Removes an entry. */
enum pinion_state pinion_state_delete(pinion_field field, const void *key, size_t key_len);

#endif
