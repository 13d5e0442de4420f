/* A function that handles each packet as its first byte says, for tests of the library. */
#include <stdlib.h>
#include <string.h>

#include <pinion_test.h>

static pinion_packet *held[16];
static size_t held_count;
static uint64_t wait_ns = 1000000;
/* The way of the last packet, and when that came. */
static pinion_way last_way;
static uint64_t last_ns;

static int prepare(const uint8_t *config, size_t len)
{
    if (config[len] != 0)
        return pinion_refuse("no zero follows the configuration");
    if (len > 0)
        wait_ns = strtoull((const char *)config, NULL, 10);
    return wait_ns > 0 ? 0 : pinion_refuse("\"%s\" is not a time", (const char *)config);
}

static void clone_thrice(pinion_packet *packet)
{
    for (int i = 0; i < 3; i++) {
        pinion_packet *clone = pinion_clone(packet);
        if (!clone) {
            pinion_log(PINION_WARN, "no slot for clone %d", i);
            break;
        }
        pinion_data(clone)[1] = (uint8_t)i;
        pinion_reply(clone);
    }
    pinion_send(packet);
}

static void handle(pinion_packet *packet)
{
    uint8_t *payload;
    size_t len;
    last_way = pinion_way_of(packet);
    last_ns = pinion_arrived_ns(packet, pinion_now_ns());
    if (pinion_message(packet, &payload, &len)) {
        payload[0] = '!';
        pinion_answer(packet, payload, len);
        return;
    }
    switch (pinion_len(packet) > 0 ? pinion_data(packet)[0] : 0) {
    case 's':
        pinion_send(packet);
        break;
    case 'r':
        pinion_reply(packet);
        break;
    case 'o':
        pinion_send_to(packet, 3);
        break;
    case 'd':
        pinion_drop(packet);
        break;
    case 'h':
        pinion_hold(packet);
        held[held_count++] = packet;
        pinion_wake_at(pinion_now_ns() + wait_ns);
        break;
    case 'k':
        pinion_complete_checksums(packet);
        pinion_send(packet);
        break;
    case 'c':
        clone_thrice(packet);
        break;
    case 'f':
        pinion_finish();
        pinion_send(packet);
        break;
    case '2':
        pinion_send(packet);
        pinion_send(packet);
        break;
    case 'u':
        pinion_drop(packet);
        pinion_data(packet)[0] = 0;
        break;
    default:
        break;
    }
}

/* Replies to what came by this way. */
static void make_by(pinion_way way)
{
    pinion_packet *packet = pinion_make("made", 4, way);
    PINION_CHECK(packet && pinion_same_way(pinion_way_of(packet), way) && pinion_arrived_us(packet) == 0);
    pinion_reply(packet);
}

static void expire(void)
{
    while (held_count > 0)
        pinion_send(held[--held_count]);
}

PINION_FUNCTION(.init = prepare, .packet = handle, .expire = expire, .own_slots = 4);

static struct pinion_test_verdict deliver(const char *text)
{
    return pinion_test_deliver_one(text, strlen(text));
}

static void prepared(void)
{
    PINION_CHECK(pinion_test_prepare(""));
}

/* Returns the way of a packet from this port, with these flags. */
static pinion_way way_of(uint16_t port, uint16_t flags)
{
    pinion_test_deliver_checked(flags);
    PINION_CHECK(pinion_test_deliver(port, &(struct pinion_test_frame){"s", 1}, 1) == 1);
    pinion_test_deliver_checked(0);
    return last_way;
}

static void made_packets_go_by_the_way_that_they_were_given_whatever_came_last(void)
{
    prepared();
    const uint16_t ports[] = {0, 5, 5}, flags[] = {PINION_RX_FORWARD, PINION_RX_FORWARD, PINION_RX_BACKWARD};
    pinion_way ways[3];
    for (int i = 0; i < 3; i++)
        ways[i] = way_of(ports[i], flags[i]);
    PINION_CHECK(!pinion_same_way(ways[1], ways[2]) && pinion_same_way(ways[0], way_of(0, PINION_RX_FORWARD)));
    for (int i = 0; i < 3; i++)
        make_by(ways[i]);
    pinion_test_deliver_checked(PINION_RX_FORWARD);
    PINION_CHECK(deliver("s1").outcome == PINION_TEST_SENT);
    for (size_t i = 0; i < 3; i++) {
        const struct pinion_test_verdict *made = pinion_test_verdict(i);
        PINION_CHECK(made->frame == -1 && made->outcome == PINION_TEST_REPLIED && made->port == ports[i]);
        PINION_CHECK(made->direction == (i == 2 ? PINION_DIRECTION_BACKWARD : PINION_DIRECTION_FORWARD));
    }
}

static void a_packet_says_when_it_came(void)
{
    prepared();
    pinion_test_let_pass_ns(UINT64_C(5000) * 1000000000);
    const uint64_t now_ns = pinion_now_ns();
    PINION_CHECK(deliver("s1").outcome == PINION_TEST_SENT && last_ns == now_ns);
    pinion_test_deliver_late(3000);
    PINION_CHECK(deliver("s1").outcome == PINION_TEST_SENT && last_ns == now_ns - 3000);
    pinion_test_deliver_late(0);
}

static void each_packet_goes_where_the_function_says(void)
{
    prepared();
    PINION_CHECK(deliver("s1").outcome == PINION_TEST_SENT);
    PINION_CHECK(deliver("r1").outcome == PINION_TEST_REPLIED);
    PINION_CHECK(deliver("o1").outcome == PINION_TEST_SENT_TO);
    PINION_CHECK(pinion_test_verdict(0)->output == 3);
    PINION_CHECK(deliver("d1").outcome == PINION_TEST_DROPPED);
    PINION_CHECK(strcmp((const char *)pinion_test_verdict(0)->bytes, "d1") == 0);
}

static void a_packet_is_sent_to_be_completed_only_if_the_function_says_so(void)
{
    prepared();
    PINION_CHECK(deliver("k1").completes_checksums && !deliver("s1").completes_checksums);
}

static void packets_without_a_decision_are_dropped(void)
{
    prepared();
    for (int i = 0; i < 1000; i++)
        PINION_CHECK(deliver("?").outcome == PINION_TEST_DROPPED);
}

static void held_packets_are_sent_at_the_deadline_and_not_earlier(void)
{
    prepared();
    PINION_CHECK(deliver("h1").outcome == PINION_TEST_HELD);
    PINION_CHECK(deliver("h2").outcome == PINION_TEST_HELD);
    PINION_CHECK(pinion_test_let_pass_ns(999000) == 0);
    PINION_CHECK(pinion_test_let_pass_ns(1000) == 2);
    PINION_CHECK(pinion_test_verdict(0)->outcome == PINION_TEST_SENT && pinion_test_verdict(0)->bytes[1] == '2');
    PINION_CHECK(pinion_test_let_pass_ns(10000000) == 0);
}

static void clones_use_own_slots_which_are_returned(void)
{
    prepared();
    for (int round = 0; round < 10; round++) {
        const struct pinion_test_frame frames[2] = {{"cx", 2}, {"s", 1}};
        PINION_CHECK(pinion_test_deliver(0, frames, 2) == 5);
        PINION_CHECK(pinion_test_verdict(2)->frame == -1 && pinion_test_verdict(2)->outcome == PINION_TEST_REPLIED);
        PINION_CHECK(pinion_test_verdict(2)->len == 2 && pinion_test_verdict(2)->bytes[1] == 2);
        PINION_CHECK(pinion_test_verdict(3)->frame == 0 && pinion_test_verdict(3)->bytes[1] == 'x');
    }
}

static void there_are_at_most_as_many_clones_as_own_slots(void)
{
    prepared();
    const struct pinion_test_frame frames[2] = {{"cx", 2}, {"cy", 2}};
    PINION_CHECK(pinion_test_deliver(0, frames, 2) == 6);
    PINION_CHECK(strcmp(pinion_test_last_log(), "no slot for clone 1") == 0);
}

static void packets_after_the_function_has_finished_are_gone(void)
{
    prepared();
    PINION_CHECK(deliver("f").outcome == PINION_TEST_SENT);
    PINION_CHECK(pinion_test_finished());
    PINION_CHECK(deliver("s").outcome == PINION_TEST_GONE);
}

static void send_twice(void)
{
    deliver("2");
}

static void use_after_drop(void)
{
    deliver("u");
}

static void a_packet_that_is_sent_twice_or_used_afterwards_ends_the_function(void)
{
    prepared();
    PINION_CHECK(strcmp(pinion_test_panic(send_twice), "the packet of slot 0 was used after it was sent or dropped") == 0);
    prepared();
    PINION_CHECK(strcmp(pinion_test_panic(use_after_drop), "the packet of slot 0 was used after it was sent or dropped") == 0);
}

static void a_message_is_answered(void)
{
    prepared();
    uint8_t frame[PINION_MESSAGE_HEADER_BYTES + 3] = {0};
    pinion_store16(frame + 12, PINION_MESSAGE_ETHERTYPE);
    frame[PINION_MESSAGE_VERSION_AT] = PINION_MESSAGE_VERSION;
    memcpy(frame + PINION_MESSAGE_HEADER_BYTES, "abc", 3);
    const struct pinion_test_verdict verdict = pinion_test_deliver_one(frame, sizeof frame);
    PINION_CHECK(verdict.outcome == PINION_TEST_REPLIED && verdict.len == sizeof frame);
    PINION_CHECK(memcmp(verdict.bytes + PINION_MESSAGE_HEADER_BYTES, "!bc", 3) == 0);
}

static void lengths_change_only_within_the_slot(void)
{
    prepared();
    pinion_packet *packet = pinion_make("abcdef", 6, way_of(0, 0));
    PINION_CHECK(packet && pinion_headroom(packet) == 64 && pinion_tailroom(packet) == PINION_PACKET_BYTES_MAX - 6);
    PINION_CHECK(pinion_prepend(packet, 64) && pinion_len(packet) == 70 && pinion_data(packet)[63] == 0);
    PINION_CHECK(!pinion_prepend(packet, 1));
    PINION_CHECK(pinion_trim_front(packet, 66) && memcmp(pinion_data(packet), "cdef", 4) == 0);
    PINION_CHECK(!pinion_trim_front(packet, 5));
    PINION_CHECK(pinion_set_len(packet, PINION_SLOT_SIZE - 66) && pinion_tailroom(packet) == 0);
    PINION_CHECK(pinion_data(packet)[4] == 0 && !pinion_set_len(packet, PINION_SLOT_SIZE - 65));
    PINION_CHECK(pinion_set_len(packet, 0) && pinion_len(packet) == 0);
    PINION_CHECK(!pinion_make(NULL, PINION_PACKET_BYTES_MAX + 1, last_way));
    pinion_drop(packet);
}

static void a_slot_of_a_made_packet_that_was_dropped_is_free_again(void)
{
    prepared();
    for (int i = 0; i < 100; i++) {
        pinion_packet *packet = pinion_make(NULL, 60, way_of(0, 0));
        PINION_CHECK(packet && pinion_data(packet)[59] == 0);
        pinion_drop(packet);
    }
}

static void a_line_is_cut_between_characters(void)
{
    char text[1201];
    prepared();
    memset(text, 'a', 1023);
    memcpy(text + 1023, "\xc3\xa9", 3);
    pinion_log(PINION_INFO, "%s", text);
    PINION_CHECK(strlen(pinion_test_last_log()) == 1023);
    for (int i = 0; i < 600; i++)
        memcpy(text + 2 * i, "\xc3\xa9", 3);
    pinion_log(PINION_INFO, "%s", text);
    PINION_CHECK(strlen(pinion_test_last_log()) == 1024);
    pinion_log(PINION_INFO, "%d of %s", 1, "two");
    PINION_CHECK(strcmp(pinion_test_last_log(), "1 of two") == 0);
}

static int evaluated;

static int evaluate(void)
{
    return ++evaluated;
}

static void lines_above_the_level_are_left_out_and_not_formatted(void)
{
    prepared();
    pinion_log_up_to(PINION_WARN);
    pinion_log(PINION_INFO, "%d", evaluate());
    PINION_CHECK(!pinion_test_log(0) && evaluated == 0);
    pinion_log(PINION_WARN, "%d", evaluate());
    PINION_CHECK(strcmp(pinion_test_log(0), "1") == 0 && pinion_test_log_level(0) == PINION_WARN);
    PINION_CHECK(pinion_log_is_on(PINION_ERROR) && pinion_log_is_on(PINION_WARN) && !pinion_log_is_on(PINION_INFO));
    /* The reason for the function's end is always reported. */
    PINION_CHECK(strcmp(pinion_test_panic(send_twice), "the packet of slot 0 was used after it was sent or dropped") == 0);
}

static void a_configuration_is_refused_with_a_reason(void)
{
    PINION_CHECK(!pinion_test_prepare("none"));
    PINION_CHECK(strcmp(pinion_test_last_log(), "\"none\" is not a time") == 0);
}

static void checksum_results_of_the_device_are_reported(void)
{
    prepared();
    pinion_test_deliver_checked(PINION_RX_IP_CHECKSUM_GOOD | PINION_RX_L4_CHECKSUM_BAD);
    PINION_CHECK(deliver("h").outcome == PINION_TEST_HELD);
    PINION_CHECK(pinion_ip_checksum(held[0]) == PINION_FOUND_GOOD && pinion_l4_checksum(held[0]) == PINION_FOUND_BAD);
}

static void the_direction_is_known_in_a_chain_with_a_way_back(void)
{
    prepared();
    PINION_CHECK(deliver("h").outcome == PINION_TEST_HELD);
    pinion_test_deliver_checked(PINION_RX_FORWARD | PINION_RX_IP_CHECKSUM_GOOD);
    PINION_CHECK(deliver("h").outcome == PINION_TEST_HELD);
    pinion_test_deliver_checked(PINION_RX_BACKWARD | PINION_RX_REPLY);
    PINION_CHECK(deliver("h").outcome == PINION_TEST_HELD);
    PINION_CHECK(pinion_direction_of(held[0]) == PINION_DIRECTION_NONE && !pinion_is_reply(held[0]));
    PINION_CHECK(pinion_direction_of(held[1]) == PINION_DIRECTION_FORWARD && !pinion_is_reply(held[1]));
    PINION_CHECK(pinion_direction_of(held[2]) == PINION_DIRECTION_BACKWARD && pinion_is_reply(held[2]));
}

static void an_instance_is_kept_alive_until_its_request_ends_or_the_operators_limit(void)
{
    const uint64_t s_ns = 1000000000;
    prepared();
    PINION_CHECK(pinion_test_kept_until_ns() == 0);
    PINION_CHECK(pinion_keep_alive_until(7440 * s_ns) == 7440 * s_ns);
    PINION_CHECK(pinion_keep_alive_until(60 * s_ns) == 60 * s_ns);
    pinion_test_let_pass_ns(60 * s_ns - 1000);
    PINION_CHECK(pinion_test_kept_until_ns() == 60 * s_ns);
    pinion_test_let_pass_ns(1000);
    PINION_CHECK(pinion_test_kept_until_ns() == 0);
    PINION_CHECK(pinion_keep_alive_until(60 * s_ns) == 0);
    pinion_test_set_keep_alive_max_ns(100 * s_ns);
    PINION_CHECK(pinion_keep_alive_until(UINT64_MAX) == 160 * s_ns && pinion_test_kept_until_ns() == 160 * s_ns);
    PINION_CHECK(pinion_keep_alive_until(0) == 0 && pinion_test_kept_until_ns() == 0);
}

static void more_frames_than_slots_are_delivered_in_turn(void)
{
    static struct pinion_test_frame frames[1000];
    prepared();
    for (size_t i = 0; i < 1000; i++)
        frames[i] = (struct pinion_test_frame){"s", 1};
    PINION_CHECK(pinion_test_deliver(0, frames, 1000) == 1000);
    for (size_t i = 0; i < 1000; i++)
        PINION_CHECK(pinion_test_verdict(i)->frame == (int)i && pinion_test_verdict(i)->outcome == PINION_TEST_SENT);
}

PINION_TESTS(each_packet_goes_where_the_function_says, packets_without_a_decision_are_dropped, held_packets_are_sent_at_the_deadline_and_not_earlier,
             a_packet_is_sent_to_be_completed_only_if_the_function_says_so, made_packets_go_by_the_way_that_they_were_given_whatever_came_last, a_packet_says_when_it_came,
             clones_use_own_slots_which_are_returned, there_are_at_most_as_many_clones_as_own_slots, packets_after_the_function_has_finished_are_gone,
             a_packet_that_is_sent_twice_or_used_afterwards_ends_the_function, a_message_is_answered, lengths_change_only_within_the_slot,
             a_slot_of_a_made_packet_that_was_dropped_is_free_again, a_line_is_cut_between_characters,
             lines_above_the_level_are_left_out_and_not_formatted, a_configuration_is_refused_with_a_reason,
             checksum_results_of_the_device_are_reported, the_direction_is_known_in_a_chain_with_a_way_back,
             an_instance_is_kept_alive_until_its_request_ends_or_the_operators_limit, more_frames_than_slots_are_delivered_in_turn)
