/* State: what outlives an instance, or is shared with others. Entries of fields, by key, that the node keeps.
 *
 * A field is declared in the manifest, and granted to a stage to read or to write. All instances of all chains of the tenant that were
 * granted a field of a name see the same entries: so one function may write what another may only read, and what one instance has
 * learnt the next one knows.
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
 * A function that lets so many packets of each sender pass:
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
 * Keys and values are bytes. A key has at most PINION_STATE_KEY_BYTES_MAX, a value as many as its field is declared for, and
 * PINION_STATE_VALUE_BYTES_MAX at most. Who needs more than one step at a time looks at what is there and changes it only if it is still that
 * (pinion_state_compare_and_swap), or adds to a number (pinion_state_add).
 *
 * An entry is there until it is deleted, its time to live is over, no chain that declares its field is left, or the node ends. A call takes
 * some hundred nanoseconds, more where the entry is in no cache, and is bounded in time like all calls: where somebody else is at the same
 * entry for too long, the instance gives way to others and tries again, without the function noticing. */
#ifndef PINION_STATE_H
#define PINION_STATE_H

#include <stddef.h>
#include <stdint.h>

#include <pinion/abi.h>

/** What came of a call. Of all but PINION_STATE_DONE, what was stored is as it was. */
enum pinion_state {
    /** It is done. */
    PINION_STATE_DONE,
    /** Nothing is stored under this key. */
    PINION_STATE_NO_ENTRY,
    /** What is stored is not what pinion_state_compare_and_swap was told to expect. */
    PINION_STATE_UNEXPECTED,
    /** What is stored is not of the length that was asked for. */
    PINION_STATE_OTHER_LENGTH,
    /** The key is longer than PINION_STATE_KEY_BYTES_MAX, or the value longer than the field is declared for. */
    PINION_STATE_TOO_LONG,
    /** The field has no room for another entry. */
    PINION_STATE_FULL,
    /** The stage was granted the field to read only. */
    PINION_STATE_DENIED,
    /** The stage was granted no field of this name; or the field was never opened. */
    PINION_STATE_NO_FIELD,
    /** Not in `init`, of which all instances have what it leaves behind. */
    PINION_STATE_NOT_NOW,
};

/** The same in a sentence, for a line of the log. */
const char *pinion_state_sentence(enum pinion_state state);

/** A field that the stage was granted: a number, to be copied as one. What is in here is the library's. */
typedef struct pinion_field {
    /* One more than the node's, so that a field that was never opened is none. */
    int32_t number_;
} pinion_field;

/** Opens the field of this name. Zero; or, if the stage was not granted it, what `init` is to return, after a line that names the field: then a
 *  chain that does not grant it is refused when it is applied. */
int pinion_state_open(pinion_field *field, const char *name);

/** Copies what is stored under a key to `value`, as much as its `capacity` bytes hold. `len` is how long the value is in full, in bytes, and
 *  may be NULL; if there is none, it stays as it is. */
enum pinion_state pinion_state_get(pinion_field field, const void *key, size_t key_len, void *value, size_t capacity, size_t *len);

/** The same of a value that has exactly so many bytes, such as a struct or a number; PINION_STATE_OTHER_LENGTH if it has not, and then
 *  `value` is of no use. */
enum pinion_state pinion_state_get_exactly(pinion_field field, const void *key, size_t key_len, void *value, size_t len);

/** Stores a value under a key, whatever there was. Its time to live begins anew. */
enum pinion_state pinion_state_put(pinion_field field, const void *key, size_t key_len, const void *value, size_t len);

/** Stores a value under a key if what is there is `expected`, byte by byte, or, if that is NULL, if nothing is; PINION_STATE_UNEXPECTED if not. Its time
 *  to live begins anew then. */
enum pinion_state pinion_state_compare_and_swap(pinion_field field, const void *key, size_t key_len, const void *expected, size_t expected_len,
                                                const void *value, size_t len);

/** Adds to the number under a key, 8 bytes, little-endian, which is zero if it is not there, and wraps around at its ends. `sum` is what comes
 *  of it, and may be NULL. Of an entry that was there, the time to live goes on. PINION_STATE_OTHER_LENGTH if there are not 8 bytes. */
enum pinion_state pinion_state_add(pinion_field field, const void *key, size_t key_len, int64_t delta, int64_t *sum);

/** Has an entry end after so many milliseconds, at once with 0, and never with PINION_NEVER. */
enum pinion_state pinion_state_expire(pinion_field field, const void *key, size_t key_len, uint64_t after_ms);

/** Removes an entry. */
enum pinion_state pinion_state_delete(pinion_field field, const void *key, size_t key_len);

#endif
