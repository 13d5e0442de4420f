/* State: makes the node's calls, repeats them when the node asks for it, and translates their results. */
#include <string.h>

#include "internal.h"

/* Translates a call's result: zero or more, or the negative of an `enum pinion_errno`. */
static enum pinion_state state_of(int32_t returned)
{
    if (returned >= 0)
        return PINION_STATE_DONE;
    switch (-(int64_t)returned) {
    case PINION_ERRNO_TOO_LONG:
        return PINION_STATE_TOO_LONG;
    case PINION_ERRNO_DENIED:
        return PINION_STATE_DENIED;
    case PINION_ERRNO_NO_FIELD:
        return PINION_STATE_NO_FIELD;
    case PINION_ERRNO_NO_ENTRY:
        return PINION_STATE_NO_ENTRY;
    case PINION_ERRNO_FULL:
        return PINION_STATE_FULL;
    case PINION_ERRNO_MISMATCH:
        return PINION_STATE_OTHER_LENGTH;
    case PINION_ERRNO_FAULT:
        pinion_panic("a key or a value of state lies outside of the function's memory");
    default:
        /* A result that this contract does not define counts as PINION_STATE_NOT_NOW. */
        return PINION_STATE_NOT_NOW;
    }
}

/* Repeats a call until the result is not PINION_ERRNO_AGAIN. The node lets others run between two calls. */
#define CALL(returned, call)                                                                                                             \
    do                                                                                                                                   \
        returned = (call);                                                                                                               \
    while (returned == -PINION_ERRNO_AGAIN)

static int32_t number_of(pinion_field field)
{
    return field.number_ - 1;
}

const char *pinion_state_sentence(enum pinion_state state)
{
    switch (state) {
    case PINION_STATE_DONE:
        return "it is done";
    case PINION_STATE_NO_ENTRY:
        return "nothing is stored in the state field under this key";
    case PINION_STATE_UNEXPECTED:
        return "what is stored in the state field is not what was expected";
    case PINION_STATE_OTHER_LENGTH:
        return "what is stored in the state field has another length";
    case PINION_STATE_TOO_LONG:
        return "the key is too long, or the value is longer than the state field is declared for";
    case PINION_STATE_FULL:
        return "the state field has no room for another entry";
    case PINION_STATE_DENIED:
        return "the stage is granted this state field to read only";
    case PINION_STATE_NO_FIELD:
        return "the stage is granted no state field of this name: grant it in the chain's manifest";
    case PINION_STATE_NOT_NOW:
        return "state cannot be used while the function is initialised";
    }
    return "the state call returned an unknown result";
}

int pinion_state_open(pinion_field *field, const char *name)
{
    int32_t returned;
    CALL(returned, pinion_host_state_open(name, strlen(name)));
    field->number_ = returned >= 0 ? returned + 1 : 0;
    if (returned >= 0)
        return 0;
    return pinion_refuse("state field \"%s\": %s", name, pinion_state_sentence(state_of(returned)));
}

enum pinion_state pinion_state_get(pinion_field field, const void *key, size_t key_len, void *value, size_t capacity, size_t *len)
{
    int32_t returned;
    CALL(returned, pinion_host_state_get(number_of(field), key, key_len, value, capacity));
    if (returned >= 0 && len)
        *len = (size_t)returned;
    return state_of(returned);
}

enum pinion_state pinion_state_get_exactly(pinion_field field, const void *key, size_t key_len, void *value, size_t len)
{
    size_t stored;
    const enum pinion_state state = pinion_state_get(field, key, key_len, value, len, &stored);
    return state == PINION_STATE_DONE && stored != len ? PINION_STATE_OTHER_LENGTH : state;
}

enum pinion_state pinion_state_put(pinion_field field, const void *key, size_t key_len, const void *value, size_t len)
{
    int32_t returned;
    CALL(returned, pinion_host_state_put(number_of(field), key, key_len, value, len));
    return state_of(returned);
}

enum pinion_state pinion_state_compare_and_swap(pinion_field field, const void *key, size_t key_len, const void *expected, size_t expected_len,
                                                const void *value, size_t len)
{
    const int32_t len_of_it = expected_len > INT32_MAX ? INT32_MAX : (int32_t)expected_len;
    const int32_t wanted = expected ? len_of_it : PINION_STATE_EXPECT_NONE;
    int32_t returned;
    CALL(returned, pinion_host_state_cas(number_of(field), key, key_len, expected, wanted, value, len));
    return returned == -PINION_ERRNO_MISMATCH ? PINION_STATE_UNEXPECTED : state_of(returned);
}

enum pinion_state pinion_state_add(pinion_field field, const void *key, size_t key_len, int64_t delta, int64_t *sum)
{
    int64_t result = 0;
    int32_t returned;
    CALL(returned, pinion_host_state_add(number_of(field), key, key_len, delta, &result));
    if (returned >= 0 && sum)
        *sum = result;
    return state_of(returned);
}

enum pinion_state pinion_state_expire(pinion_field field, const void *key, size_t key_len, uint64_t after_ms)
{
    const int64_t ttl_ms = after_ms == PINION_NEVER ? -1 : after_ms > INT64_MAX ? INT64_MAX : (int64_t)after_ms;
    int32_t returned;
    CALL(returned, pinion_host_state_expire(number_of(field), key, key_len, ttl_ms));
    return state_of(returned);
}

enum pinion_state pinion_state_delete(pinion_field field, const void *key, size_t key_len)
{
    int32_t returned;
    CALL(returned, pinion_host_state_delete(number_of(field), key, key_len));
    return state_of(returned);
}
