/* A function that is a loop of its own, on a fake node. */
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

/* Whether the packet is the last one. */
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

/* Sends on what comes, and a packet of its own whenever nothing has for a millisecond. */
static void run(void)
{
    pinion_packet *packets[PINION_BATCH_PACKETS_MAX];
    for (;;) {
        const size_t count = pinion_wait_until(packets, pinion_now_ns() + MILLISECOND_NS);
        for (size_t i = 0; i < count; i++)
            if (is_done_with(packets[i]))
                return;
        if (count == 0) {
            pinion_counter_add(&beats, 1);
            pinion_packet *beat = pinion_make("beat", 4);
            if (beat)
                pinion_send(beat);
        }
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

static void packets_come_in_batches_however_many_there_are(void)
{
    static struct pinion_test_frame frames[600];
    prepared();
    for (size_t i = 0; i < 600; i++)
        frames[i] = (struct pinion_test_frame){"s", 1};
    PINION_CHECK(pinion_test_deliver(0, frames, 600) == 600);
    for (size_t i = 0; i < 600; i++)
        PINION_CHECK(pinion_test_verdict(i)->frame == (int)i && pinion_test_verdict(i)->outcome == PINION_TEST_SENT);
}

static void each_deadline_in_the_time_that_passes_is_met_once_and_slots_of_its_own_come_back(void)
{
    prepared();
    PINION_CHECK(pinion_test_let_pass_ns(MILLISECOND_NS - 1000) == 0);
    PINION_CHECK(pinion_test_let_pass_ns(1000) == 1);
    PINION_CHECK(pinion_test_let_pass_ns(10 * MILLISECOND_NS) == 10);
    for (size_t i = 0; i < 10; i++)
        PINION_CHECK(pinion_test_verdict(i)->frame == -1 && memcmp(pinion_test_verdict(i)->bytes, "beat", 4) == 0);
    PINION_CHECK(pinion_test_metric("beats", PINION_NO_LABELS) == 11);
    PINION_CHECK(deliver("s") == PINION_TEST_SENT);
    /* From then on. */
    PINION_CHECK(pinion_test_let_pass_ns(MILLISECOND_NS) == 1);
}

static void what_nothing_is_said_of_is_dropped_by_the_next_wait(void)
{
    const struct pinion_test_frame frames[] = {{"n", 1}, {"s", 1}, {"n", 1}};
    prepared();
    for (int round = 0; round < 500; round++)
        PINION_CHECK(pinion_test_deliver(0, frames, 3) == 3);
    PINION_CHECK(pinion_test_verdict(0)->outcome == PINION_TEST_SENT && pinion_test_verdict(1)->outcome == PINION_TEST_DROPPED);
}

static void who_returns_is_done_and_what_it_has_sent_goes_out(void)
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

static void a_panic_ends_it_and_it_can_be_prepared_anew(void)
{
    prepared();
    PINION_CHECK(strcmp(pinion_test_panic(send_twice), "the packet of slot 0 was used after it was sent or dropped") == 0);
    prepared();
    PINION_CHECK(deliver("e") == PINION_TEST_REPLIED);
    PINION_CHECK(strcmp(pinion_test_panic(wait_in_a_test), "only a function's .run waits by itself") == 0);
}

PINION_TESTS(packets_come_in_batches_however_many_there_are, each_deadline_in_the_time_that_passes_is_met_once_and_slots_of_its_own_come_back,
             what_nothing_is_said_of_is_dropped_by_the_next_wait, who_returns_is_done_and_what_it_has_sent_goes_out,
             a_panic_ends_it_and_it_can_be_prepared_anew)
