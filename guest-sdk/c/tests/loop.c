/* A function with a loop of its own, on a fake node. */
#include <string.h>

#include <pinion_test.h>

#define MILLISECOND_NS 1000000u

static pinion_counter beats;

static int prepare(const uint8_t *config, size_t len)
{
    (void)config, (void)len;
    pinion_declare_counter(&beats, "beats", "Packets of its own.", PINION_NO_LABELS);
    return 0;
}

/* Returns whether the packet is the last one. */
static bool is_done_with(pinion_packet *packet)
{
    switch (pinion_data(packet)[0]) {
    case 'e':
        pinion_reply(packet);
        return true;
    case 'n':
        return false;
    case '2':
        pinion_send(packet);
        /* Falls through. */
    default:
        pinion_send(packet);
        return false;
    }
}

/* Sends received packets on, and then a packet of its own whenever none has arrived for a millisecond. */
static void run(void)
{
    pinion_packet *packets[PINION_BATCH_PACKETS_MAX];
    size_t count = pinion_wait(packets);
    const pinion_way way = pinion_way_of(packets[0]);
    for (;;) {
        for (size_t i = 0; i < count; i++)
            if (is_done_with(packets[i]))
                return;
        if (count == 0) {
            pinion_counter_add(&beats, 1);
            pinion_packet *beat = pinion_make("beat", 4, way);
            if (beat)
                pinion_send(beat);
        }
        count = pinion_wait_until(packets, pinion_now_ns() + MILLISECOND_NS);
    }
}

PINION_FUNCTION(.init = prepare, .run = run, .own_slots = 2);

static void prepared(void)
{
    PINION_CHECK(pinion_test_prepare(""));
}

static enum pinion_test_outcome deliver(const char *text)
{
    return pinion_test_deliver_one(text, strlen(text)).outcome;
}

static void any_number_of_packets_comes_in_batches(void)
{
    static struct pinion_test_frame frames[600];
    prepared();
    for (size_t i = 0; i < 600; i++)
        frames[i] = (struct pinion_test_frame){"s", 1};
    PINION_CHECK(pinion_test_deliver(0, frames, 600) == 600);
    for (size_t i = 0; i < 600; i++)
        PINION_CHECK(pinion_test_verdict(i)->frame == (int)i && pinion_test_verdict(i)->outcome == PINION_TEST_SENT);
}

static void each_deadline_is_met_once_and_own_slots_are_returned(void)
{
    prepared();
    PINION_CHECK(pinion_test_let_pass_ns(MILLISECOND_NS) == 0);
    PINION_CHECK(pinion_test_deliver(3, &(struct pinion_test_frame){"s", 1}, 1) == 1);
    PINION_CHECK(pinion_test_let_pass_ns(MILLISECOND_NS - 1000) == 0);
    PINION_CHECK(pinion_test_let_pass_ns(1000) == 1);
    PINION_CHECK(pinion_test_let_pass_ns(10 * MILLISECOND_NS) == 10);
    for (size_t i = 0; i < 10; i++)
        PINION_CHECK(pinion_test_verdict(i)->frame == -1 && pinion_test_verdict(i)->port == 3 &&
                     memcmp(pinion_test_verdict(i)->bytes, "beat", 4) == 0);
    PINION_CHECK(pinion_test_metric("beats", PINION_NO_LABELS) == 11);
    PINION_CHECK(deliver("s") == PINION_TEST_SENT);
    /* Counted from then on. */
    PINION_CHECK(pinion_test_let_pass_ns(MILLISECOND_NS) == 1);
}

static void packets_without_a_decision_are_dropped_by_the_next_wait(void)
{
    const struct pinion_test_frame frames[] = {{"n", 1}, {"s", 1}, {"n", 1}};
    prepared();
    for (int round = 0; round < 500; round++)
        PINION_CHECK(pinion_test_deliver(0, frames, 3) == 3);
    PINION_CHECK(pinion_test_verdict(0)->outcome == PINION_TEST_SENT && pinion_test_verdict(1)->outcome == PINION_TEST_DROPPED);
}

static void a_function_that_returns_ends_and_its_sent_packets_go_out(void)
{
    const struct pinion_test_frame frames[] = {{"s", 1}, {"e", 1}, {"s", 1}};
    prepared();
    PINION_CHECK(pinion_test_deliver(0, frames, 3) == 3);
    PINION_CHECK(pinion_test_verdict(0)->outcome == PINION_TEST_SENT && pinion_test_verdict(1)->outcome == PINION_TEST_REPLIED);
    PINION_CHECK(pinion_test_verdict(2)->frame == 2 && pinion_test_verdict(2)->outcome == PINION_TEST_DROPPED);
    PINION_CHECK(pinion_test_finished() && deliver("s") == PINION_TEST_GONE && pinion_test_let_pass_ns(5 * MILLISECOND_NS) == 0);
    prepared();
    PINION_CHECK(!pinion_test_finished() && deliver("s") == PINION_TEST_SENT);
}

static void send_twice(void)
{
    deliver("2");
}

static void wait_in_a_test(void)
{
    pinion_packet *packets[PINION_BATCH_PACKETS_MAX];
    pinion_wait(packets);
}

static void a_function_can_be_prepared_again_after_a_panic(void)
{
    prepared();
    PINION_CHECK(strcmp(pinion_test_panic(send_twice), "the packet of slot 0 was used after it was sent or dropped") == 0);
    prepared();
    PINION_CHECK(deliver("e") == PINION_TEST_REPLIED);
    PINION_CHECK(strcmp(pinion_test_panic(wait_in_a_test), "pinion_wait and pinion_wait_until may only be called in a function's .run") == 0);
}

PINION_TESTS(any_number_of_packets_comes_in_batches, each_deadline_is_met_once_and_own_slots_are_returned,
             packets_without_a_decision_are_dropped_by_the_next_wait, a_function_that_returns_ends_and_its_sent_packets_go_out,
             a_function_can_be_prepared_again_after_a_panic)
