/* The fake node's state: fields that a test grants, with entries that expire by the test's clock. A list suffices for the few entries of
 * a test. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum {
    FIELDS_MAX = 16,
    ENTRIES_DEFAULT = 1000,
};

struct entry {
    uint8_t key[PINION_STATE_KEY_BYTES_MAX];
    size_t key_len;
    uint8_t value[PINION_STATE_VALUE_BYTES_MAX];
    size_t len;
    /* Time on the clock; PINION_NEVER if the entry does not expire. */
    uint64_t ends_ns;
    /* The number of writes before this one: orders entries by age. */
    uint64_t written;
};

struct field {
    struct pinion_test_field granted;
    struct entry *entries;
    size_t count;
    uint64_t writes;
};

static struct field fields[FIELDS_MAX];
static size_t field_count;
static bool is_initialising;

void fake_state_initialising(bool is)
{
    is_initialising = is;
}

bool fake_state_is_initialising(void)
{
    return is_initialising;
}

void pinion_test_grant_state(struct pinion_test_field granted)
{
    if (granted.value_bytes == 0)
        granted.value_bytes = PINION_STATE_VALUE_BYTES_MAX;
    if (granted.entries == 0)
        granted.entries = ENTRIES_DEFAULT;
    PINION_CHECK(granted.value_bytes <= PINION_STATE_VALUE_BYTES_MAX);
    size_t number = 0;
    while (number < field_count && strcmp(fields[number].granted.name, granted.name) != 0)
        number++;
    PINION_CHECK(number < FIELDS_MAX);
    field_count = number < field_count ? field_count : number + 1;
    fields[number].granted = granted;
}

/* --- Entries. ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t end_ns(uint64_t after_ms)
{
    const uint64_t now_ns = fake_exact_clock_ns();
    return after_ms > (PINION_NEVER - 1 - now_ns) / 1000000 ? PINION_NEVER - 1 : now_ns + after_ms * 1000000;
}

static void remove_entry(struct field *field, struct entry *entry)
{
    *entry = field->entries[--field->count];
}

static void end_what_is_over(struct field *field)
{
    for (size_t i = field->count; i-- > 0;)
        if (field->entries[i].ends_ns <= fake_exact_clock_ns())
            remove_entry(field, &field->entries[i]);
}

static struct entry *find(struct field *field, const void *key, size_t key_len)
{
    for (struct entry *entry = field->entries; entry < field->entries + field->count; entry++)
        if (entry->key_len == key_len && (key_len == 0 || memcmp(entry->key, key, key_len) == 0))
            return entry;
    return NULL;
}

static struct entry *oldest(struct field *field)
{
    struct entry *oldest = field->entries;
    for (struct entry *entry = field->entries; entry < field->entries + field->count; entry++)
        if (entry->written < oldest->written)
            oldest = entry;
    return oldest;
}

/* Returns a new entry, if there is room for it or an eviction can make room. */
static struct entry *new_entry(struct field *field, const void *key, size_t key_len)
{
    if (field->count >= field->granted.entries) {
        if (!field->granted.evicts)
            return NULL;
        remove_entry(field, oldest(field));
    }
    field->entries = realloc(field->entries, (field->count + 1) * sizeof *field->entries);
    PINION_CHECK(field->entries);
    struct entry *entry = &field->entries[field->count++];
    entry->key_len = key_len;
    if (key_len > 0)
        memcpy(entry->key, key, key_len);
    return entry;
}

static int32_t write_entry(struct field *field, const void *key, size_t key_len, const void *value, size_t len)
{
    if (len > field->granted.value_bytes)
        return -PINION_ERRNO_TOO_LONG;
    struct entry *entry = find(field, key, key_len);
    if (!entry)
        entry = new_entry(field, key, key_len);
    if (!entry)
        return -PINION_ERRNO_FULL;
    if (len > 0)
        memcpy(entry->value, value, len);
    entry->len = len;
    entry->ends_ns = field->granted.ttl_ms > 0 ? end_ns(field->granted.ttl_ms) : PINION_NEVER;
    entry->written = field->writes++;
    return 0;
}

/* --- Called by the function. --------------------------------------------------------------------------------------------------------- */

/* Returns the field of a call for this key, or NULL and the reason. */
static struct field *field_for(int32_t number, size_t key_len, int32_t *refused)
{
    *refused = 0;
    if (is_initialising)
        *refused = -PINION_ERRNO_NOT_NOW;
    else if (key_len > PINION_STATE_KEY_BYTES_MAX)
        *refused = -PINION_ERRNO_TOO_LONG;
    else if (number < 0 || (size_t)number >= field_count)
        *refused = -PINION_ERRNO_NO_FIELD;
    if (*refused)
        return NULL;
    end_what_is_over(&fields[number]);
    return &fields[number];
}

/* Does the same for a call that changes an entry. */
static struct field *writable_field_for(int32_t number, size_t key_len, int32_t *refused)
{
    struct field *field = field_for(number, key_len, refused);
    if (!field || !field->granted.read_only)
        return field;
    *refused = -PINION_ERRNO_DENIED;
    return NULL;
}

int32_t pinion_host_state_open(const char *name, size_t len)
{
    for (size_t number = 0; number < field_count; number++)
        if (strlen(fields[number].granted.name) == len && memcmp(fields[number].granted.name, name, len) == 0)
            return (int32_t)number;
    return -PINION_ERRNO_NO_FIELD;
}

int32_t pinion_host_state_get(int32_t number, const void *key, size_t key_len, void *value, size_t capacity)
{
    int32_t refused;
    struct field *field = field_for(number, key_len, &refused);
    if (!field)
        return refused;
    const struct entry *entry = find(field, key, key_len);
    if (!entry)
        return -PINION_ERRNO_NO_ENTRY;
    const size_t fits = entry->len < capacity ? entry->len : capacity;
    if (fits > 0)
        memcpy(value, entry->value, fits);
    return (int32_t)entry->len;
}

int32_t pinion_host_state_put(int32_t number, const void *key, size_t key_len, const void *value, size_t len)
{
    int32_t refused;
    struct field *field = writable_field_for(number, key_len, &refused);
    return field ? write_entry(field, key, key_len, value, len) : refused;
}

int32_t pinion_host_state_cas(int32_t number, const void *key, size_t key_len, const void *expected, int32_t expected_len, const void *value,
                              size_t len)
{
    int32_t refused;
    struct field *field = writable_field_for(number, key_len, &refused);
    if (!field)
        return refused;
    if (len > field->granted.value_bytes)
        return -PINION_ERRNO_TOO_LONG;
    const struct entry *entry = find(field, key, key_len);
    bool is_expected = !entry && expected_len == PINION_STATE_EXPECT_NONE;
    if (entry && expected_len >= 0)
        is_expected = entry->len == (size_t)expected_len && memcmp(entry->value, expected, entry->len) == 0;
    return is_expected ? write_entry(field, key, key_len, value, len) : -PINION_ERRNO_MISMATCH;
}

int32_t pinion_host_state_add(int32_t number, const void *key, size_t key_len, int64_t delta, int64_t *sum)
{
    int32_t refused;
    struct field *field = writable_field_for(number, key_len, &refused);
    if (!field)
        return refused;
    if (field->granted.value_bytes < sizeof delta)
        return -PINION_ERRNO_TOO_LONG;
    struct entry *entry = find(field, key, key_len);
    if (!entry) {
        *sum = delta;
        return write_entry(field, key, key_len, &delta, sizeof delta);
    }
    if (entry->len != sizeof delta)
        return -PINION_ERRNO_MISMATCH;
    int64_t before;
    memcpy(&before, entry->value, sizeof before);
    *sum = (int64_t)((uint64_t)before + (uint64_t)delta);
    memcpy(entry->value, sum, sizeof *sum);
    entry->written = field->writes++;
    return 0;
}

int32_t pinion_host_state_expire(int32_t number, const void *key, size_t key_len, int64_t ttl_ms)
{
    int32_t refused;
    struct field *field = writable_field_for(number, key_len, &refused);
    if (!field)
        return refused;
    struct entry *entry = find(field, key, key_len);
    if (!entry)
        return -PINION_ERRNO_NO_ENTRY;
    entry->ends_ns = ttl_ms < 0 ? PINION_NEVER : end_ns((uint64_t)ttl_ms);
    return 0;
}

int32_t pinion_host_state_delete(int32_t number, const void *key, size_t key_len)
{
    int32_t refused;
    struct field *field = writable_field_for(number, key_len, &refused);
    if (!field)
        return refused;
    struct entry *entry = find(field, key, key_len);
    if (!entry)
        return -PINION_ERRNO_NO_ENTRY;
    remove_entry(field, entry);
    return 0;
}
