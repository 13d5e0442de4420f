/* State as a function uses it, on the fake node. tests/guests/hostile-c/notebook.c checks that a real node behaves the same. */
#include <string.h>

#include <pinion_test.h>

static pinion_field sessions;
/* The result of the call in `init`. */
static enum pinion_state too_early;

static int prepare(const uint8_t *config, size_t len)
{
    (void)len;
    const int refused = pinion_state_open(&sessions, (const char *)config);
    if (!refused)
        too_early = pinion_state_put(sessions, "key", 3, "value", 5);
    return refused;
}

static void handle(pinion_packet *packet)
{
    int64_t count;
    if (pinion_state_add(sessions, pinion_data(packet), pinion_len(packet), 1, &count) == PINION_STATE_DONE && count <= 2)
        pinion_send(packet);
}

PINION_FUNCTION(.init = prepare, .packet = handle);

static void granted(void)
{
    pinion_test_grant_state((struct pinion_test_field){.name = "sessions", .value_bytes = 8, .entries = 3});
    PINION_CHECK(pinion_test_prepare("sessions"));
}

static bool passes(const char *sender)
{
    return pinion_test_deliver_one(sender, strlen(sender)).outcome == PINION_TEST_SENT;
}

static void all_instances_count_in_the_same_field(void)
{
    granted();
    PINION_CHECK(passes("a") && passes("b"));
    PINION_CHECK(pinion_test_prepare("sessions"));
    PINION_CHECK(passes("a") && !passes("a") && passes("b"));
}

static void a_field_that_is_not_granted_is_refused_by_name(void)
{
    PINION_CHECK(!pinion_test_prepare("sessions"));
    PINION_CHECK(strstr(pinion_test_last_log(), "state field \"sessions\": the stage is granted no state field of this name"));
    PINION_CHECK(pinion_test_log_level(0) == PINION_ERROR);
}

static void a_field_that_was_never_opened_is_no_field(void)
{
    const pinion_field never = {0};
    granted();
    PINION_CHECK(pinion_state_put(never, "key", 3, "value", 5) == PINION_STATE_NO_FIELD);
}

static void state_cannot_be_used_during_initialisation(void)
{
    granted();
    PINION_CHECK(too_early == PINION_STATE_NOT_NOW);
    PINION_CHECK(pinion_state_get(sessions, "key", 3, NULL, 0, NULL) == PINION_STATE_NO_ENTRY);
}

static void a_value_is_copied_up_to_the_capacity_and_its_full_length_is_returned(void)
{
    char value[8] = "--------";
    size_t len = 99;
    granted();
    PINION_CHECK(pinion_state_get(sessions, "key", 3, value, sizeof value, &len) == PINION_STATE_NO_ENTRY && len == 99);
    PINION_CHECK(pinion_state_put(sessions, "key", 3, "abcdef", 6) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_get(sessions, "key", 3, value, 4, &len) == PINION_STATE_DONE && len == 6);
    PINION_CHECK(memcmp(value, "abcd----", 8) == 0);
    PINION_CHECK(pinion_state_get(sessions, "key", 3, NULL, 0, &len) == PINION_STATE_DONE && len == 6);
    PINION_CHECK(pinion_state_get_exactly(sessions, "key", 3, value, 6) == PINION_STATE_DONE && memcmp(value, "abcdef", 6) == 0);
    PINION_CHECK(pinion_state_get_exactly(sessions, "key", 3, value, 5) == PINION_STATE_OTHER_LENGTH);
    PINION_CHECK(pinion_state_get_exactly(sessions, "key", 3, value, 8) == PINION_STATE_OTHER_LENGTH);
}

static void a_value_and_a_key_may_be_empty(void)
{
    size_t len = 99;
    granted();
    PINION_CHECK(pinion_state_put(sessions, NULL, 0, NULL, 0) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_get(sessions, NULL, 0, NULL, 0, &len) == PINION_STATE_DONE && len == 0);
    /* An empty value differs from no entry. */
    PINION_CHECK(pinion_state_compare_and_swap(sessions, NULL, 0, NULL, 0, "x", 1) == PINION_STATE_UNEXPECTED);
    PINION_CHECK(pinion_state_compare_and_swap(sessions, NULL, 0, "", 0, "x", 1) == PINION_STATE_DONE);
}

static void a_swap_needs_the_expected_value(void)
{
    granted();
    PINION_CHECK(pinion_state_compare_and_swap(sessions, "80", 2, "first", 5, "second", 6) == PINION_STATE_UNEXPECTED);
    PINION_CHECK(pinion_state_compare_and_swap(sessions, "80", 2, NULL, 0, "first", 5) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_compare_and_swap(sessions, "80", 2, NULL, 0, "second", 6) == PINION_STATE_UNEXPECTED);
    PINION_CHECK(pinion_state_compare_and_swap(sessions, "80", 2, "firs", 4, "second", 6) == PINION_STATE_UNEXPECTED);
    PINION_CHECK(pinion_state_compare_and_swap(sessions, "80", 2, "first", 5, "second", 6) == PINION_STATE_DONE);
}

static void numbers_wrap_around(void)
{
    int64_t sum = 0;
    granted();
    PINION_CHECK(pinion_state_add(sessions, "n", 1, INT64_MAX, NULL) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_add(sessions, "n", 1, 1, &sum) == PINION_STATE_DONE && sum == INT64_MIN);
    PINION_CHECK(pinion_state_put(sessions, "n", 1, "text", 4) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_add(sessions, "n", 1, 1, &sum) == PINION_STATE_OTHER_LENGTH && sum == INT64_MIN);
}

static void values_that_are_too_long_or_find_no_room_are_refused(void)
{
    static const char key[PINION_STATE_KEY_BYTES_MAX + 1];
    granted();
    PINION_CHECK(pinion_state_put(sessions, key, sizeof key, "x", 1) == PINION_STATE_TOO_LONG);
    PINION_CHECK(pinion_state_put(sessions, key, sizeof key - 1, "x", 1) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_put(sessions, "a", 1, "nine byte", 9) == PINION_STATE_TOO_LONG);
    PINION_CHECK(pinion_state_put(sessions, "a", 1, "x", 1) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_put(sessions, "b", 1, "x", 1) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_put(sessions, "c", 1, "x", 1) == PINION_STATE_FULL);
    PINION_CHECK(pinion_state_delete(sessions, "b", 1) == PINION_STATE_DONE && pinion_state_delete(sessions, "b", 1) == PINION_STATE_NO_ENTRY);
    PINION_CHECK(pinion_state_put(sessions, "c", 1, "x", 1) == PINION_STATE_DONE);
}

static void a_full_field_evicts_the_entry_written_longest_ago(void)
{
    pinion_test_grant_state((struct pinion_test_field){.name = "sessions", .entries = 2, .evicts = true});
    PINION_CHECK(pinion_test_prepare("sessions"));
    for (const char *key = "abac"; *key; key++)
        PINION_CHECK(pinion_state_put(sessions, key, 1, "x", 1) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_get(sessions, "a", 1, NULL, 0, NULL) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_get(sessions, "b", 1, NULL, 0, NULL) == PINION_STATE_NO_ENTRY);
}

static bool is_there(const char *key)
{
    return pinion_state_get(sessions, key, strlen(key), NULL, 0, NULL) == PINION_STATE_DONE;
}

static void entries_expire_after_their_ttl(void)
{
    pinion_test_grant_state((struct pinion_test_field){.name = "sessions", .ttl_ms = 10});
    PINION_CHECK(pinion_test_prepare("sessions"));
    for (const char *key = "abcd"; *key; key++)
        PINION_CHECK(pinion_state_add(sessions, key, 1, 1, NULL) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_expire(sessions, "b", 1, 20) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_expire(sessions, "c", 1, PINION_NEVER) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_expire(sessions, "d", 1, 0) == PINION_STATE_DONE && !is_there("d"));
    PINION_CHECK(pinion_state_expire(sessions, "d", 1, 5) == PINION_STATE_NO_ENTRY);
    pinion_test_let_pass_ns(9999999);
    /* An addition does not restart an entry's time to live, and a put does. */
    PINION_CHECK(pinion_state_add(sessions, "a", 1, 1, NULL) == PINION_STATE_DONE);
    PINION_CHECK(pinion_state_put(sessions, "e", 1, "x", 1) == PINION_STATE_DONE);
    pinion_test_let_pass_ns(1);
    PINION_CHECK(!is_there("a") && is_there("b") && is_there("c") && is_there("e"));
    pinion_test_let_pass_ns(10000000);
    PINION_CHECK(!is_there("b") && is_there("c") && !is_there("e"));
}

static void a_read_only_field_cannot_be_changed(void)
{
    granted();
    PINION_CHECK(pinion_state_put(sessions, "a", 1, "x", 1) == PINION_STATE_DONE);
    pinion_test_grant_state((struct pinion_test_field){.name = "sessions", .read_only = true});
    PINION_CHECK(pinion_state_put(sessions, "a", 1, "y", 1) == PINION_STATE_DENIED);
    PINION_CHECK(pinion_state_compare_and_swap(sessions, "a", 1, "x", 1, "y", 1) == PINION_STATE_DENIED);
    PINION_CHECK(pinion_state_add(sessions, "a", 1, 1, NULL) == PINION_STATE_DENIED);
    PINION_CHECK(pinion_state_expire(sessions, "a", 1, 0) == PINION_STATE_DENIED);
    PINION_CHECK(pinion_state_delete(sessions, "a", 1) == PINION_STATE_DENIED);
    PINION_CHECK(is_there("a"));
}

static void each_result_has_a_sentence(void)
{
    for (int state = PINION_STATE_DONE; state <= PINION_STATE_NOT_NOW; state++)
        PINION_CHECK(strlen(pinion_state_sentence((enum pinion_state)state)) > 5);
    PINION_CHECK(strcmp(pinion_state_sentence(PINION_STATE_FULL), "the state field has no room for another entry") == 0);
}

PINION_TESTS(all_instances_count_in_the_same_field, a_field_that_is_not_granted_is_refused_by_name,
             a_field_that_was_never_opened_is_no_field, state_cannot_be_used_during_initialisation,
             a_value_is_copied_up_to_the_capacity_and_its_full_length_is_returned, a_value_and_a_key_may_be_empty, a_swap_needs_the_expected_value,
             numbers_wrap_around, values_that_are_too_long_or_find_no_room_are_refused, a_full_field_evicts_the_entry_written_longest_ago,
             entries_expire_after_their_ttl, a_read_only_field_cannot_be_changed, each_result_has_a_sentence)
