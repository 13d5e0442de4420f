/* The sample `notebook` in C: keeps values in a state field and returns them, with the same answers. It also has metrics: a counter of
 * orders by outcome, the length of the longest order, and the key of the latest. Its configuration is the name of the field. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pinion.h>

/* The most words of an order. */
#define WORDS_MAX 4

static pinion_field notes;
static pinion_counter obeyed, refused;
static pinion_gauge longest;
static pinion_named_gauge latest;

/* The text of the answer. */
static char answer[PINION_STATE_VALUE_BYTES_MAX + 1];

static int prepare(const uint8_t *config, size_t len)
{
    (void)len;
    const char *const help = "Orders, by what came of them.";
    pinion_declare_counter(&obeyed, "notebook_orders", help, PINION_LABELS({"outcome", "obeyed"}));
    pinion_declare_counter(&refused, "notebook_orders", help, PINION_LABELS({"outcome", "refused"}));
    pinion_declare_gauge(&longest, "notebook_longest_order_bytes", "The longest order so far.", PINION_NO_LABELS);
    pinion_declare_named_gauge(&latest, "notebook_latest_order_bytes", "The latest order, by the key that it was about.", PINION_NO_LABELS, "key");
    return pinion_state_open(&notes, (const char *)config);
}

/* Parses a number of digits only, with or without a sign. */
static bool number_of(const char *word, long long *number)
{
    char *end;
    errno = 0;
    *number = strtoll(word, &end, 10);
    return errno == 0 && end > word && *end == 0;
}

static enum pinion_state get(const char *key)
{
    size_t len;
    const enum pinion_state state = pinion_state_get(notes, key, strlen(key), answer, sizeof answer - 1, &len);
    if (state == PINION_STATE_DONE)
        answer[len] = 0;
    return state;
}

static enum pinion_state number(const char *key)
{
    int64_t value;
    const enum pinion_state state = pinion_state_get_exactly(notes, key, strlen(key), &value, sizeof value);
    if (state == PINION_STATE_DONE)
        snprintf(answer, sizeof answer, "%lld", (long long)value);
    return state;
}

static enum pinion_state swap(const char *key, const char *expected, const char *value)
{
    const bool expects_none = strcmp(expected, "none") == 0;
    return pinion_state_compare_and_swap(notes, key, strlen(key), expects_none ? NULL : expected, strlen(expected), value, strlen(value));
}

static enum pinion_state add(const char *key, long long delta)
{
    int64_t sum;
    const enum pinion_state state = pinion_state_add(notes, key, strlen(key), delta, &sum);
    if (state == PINION_STATE_DONE)
        snprintf(answer, sizeof answer, "%lld", (long long)sum);
    return state;
}

/* Executes an order; returns false if it is none. The result is in `answer`, except for errors. */
static bool obey(char *const words[WORDS_MAX], size_t count, enum pinion_state *state)
{
    const char *const order = count > 0 ? words[0] : "", *const key = words[1];
    long long value = 0;
    strcpy(answer, "ok");
    if (count == 1 && strcmp(order, "finish") == 0) {
        pinion_finish();
        *state = PINION_STATE_DONE;
    } else if (count == 2 && strcmp(order, "get") == 0) {
        *state = get(key);
    } else if (count == 2 && strcmp(order, "number") == 0) {
        *state = number(key);
    } else if (count == 2 && strcmp(order, "delete") == 0) {
        *state = pinion_state_delete(notes, key, strlen(key));
    } else if (count == 3 && strcmp(order, "put") == 0) {
        *state = pinion_state_put(notes, key, strlen(key), words[2], strlen(words[2]));
    } else if (count == 4 && strcmp(order, "swap") == 0) {
        *state = swap(key, words[2], words[3]);
    } else if (count == 3 && strcmp(order, "add") == 0 && number_of(words[2], &value)) {
        *state = add(key, value);
    } else if (count == 3 && strcmp(order, "expire") == 0 && strcmp(words[2], "never") == 0) {
        *state = pinion_state_expire(notes, key, strlen(key), PINION_NEVER);
    } else if (count == 3 && strcmp(order, "expire") == 0 && number_of(words[2], &value) && value >= 0) {
        *state = pinion_state_expire(notes, key, strlen(key), (uint64_t)value);
    } else {
        return false;
    }
    return true;
}

/* Returns whether the outcome is no error. */
static bool is_fine(enum pinion_state state)
{
    return state == PINION_STATE_DONE || state == PINION_STATE_NO_ENTRY || state == PINION_STATE_UNEXPECTED;
}

/* The answers for a missing entry or another value: `none` to a read, `no` to a change. */
static const char *answer_to(const char *order, enum pinion_state state)
{
    if (state == PINION_STATE_DONE)
        return answer;
    if (is_fine(state))
        return strcmp(order, "get") == 0 || strcmp(order, "number") == 0 ? "none" : "no";
    return pinion_state_sentence(state);
}

static void handle(pinion_packet *packet)
{
    uint8_t *payload;
    size_t len;
    char text[PINION_MESSAGE_PAYLOAD_BYTES_MAX + 1];
    /* A packet that is no message is dropped. */
    if (!pinion_message(packet, &payload, &len) || len >= sizeof text)
        return;
    memcpy(text, payload, len);
    text[len] = 0;
    char *words[WORDS_MAX] = {NULL};
    size_t count = 0;
    for (char *word = strtok(text, " "); word && count < WORDS_MAX; word = strtok(NULL, " "))
        words[count++] = word;
    enum pinion_state state;
    const char *said = "orders: get, number, put, swap, add, expire, delete, finish";
    const bool is_order = obey(words, count, &state);
    if (is_order)
        said = answer_to(words[0], state);
    pinion_counter_add(is_order && is_fine(state) ? &obeyed : &refused, 1);
    if ((int64_t)len > pinion_gauge_value(&longest))
        pinion_gauge_set(&longest, (int64_t)len);
    if (words[1])
        pinion_named_gauge_set(&latest, words[1], (int64_t)len);
    else
        pinion_named_gauge_clear(&latest);
    pinion_answer(packet, said, strlen(said));
}

PINION_FUNCTION(.init = prepare, .packet = handle);
