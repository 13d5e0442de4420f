/* The function as a node sees it, frame by frame. Another test compares its counts with those of the Rust version, on a
 * node. */
#include <stdio.h>
#include <string.h>

#include <pinion_test.h>

#define SECOND_NS 1000000000u

/* Delivers a datagram from 10.0.0.SENDER, port 1000, to 10.9.9.9, port 53, of so many bytes with all headers; returns
 * the outcome. */
static enum pinion_test_outcome send(uint8_t sender, size_t len)
{
    static const uint8_t headers[] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 0, 10, 9, 9, 9};
    uint8_t frame[1500] = {0};
    memcpy(frame, headers, sizeof headers);
    pinion_store16(frame + 16, (uint16_t)(len - 14));
    frame[29] = sender;
    pinion_store16(frame + 34, 1000);
    pinion_store16(frame + 36, 53);
    pinion_store16(frame + 38, (uint16_t)(len - 34));
    const struct pinion_test_verdict verdict = pinion_test_deliver_one(frame, len);
    PINION_CHECK(verdict.len == len && memcmp(verdict.bytes, frame, len) == 0);
    return verdict.outcome;
}

static void everything_passes_untouched_rubbish_included(void)
{
    static const uint8_t rubbish[20] = {0xff, 1, 2};
    PINION_CHECK(pinion_test_prepare(""));
    PINION_CHECK(send(1, 100) == PINION_TEST_SENT);
    for (size_t len = 1; len <= sizeof rubbish; len++)
        PINION_CHECK(pinion_test_deliver_one(rubbish, len).outcome == PINION_TEST_SENT);
    PINION_CHECK(pinion_test_metric("monitor_packets", PINION_NO_LABELS) == 21);
    PINION_CHECK(pinion_test_metric("monitor_flows", PINION_NO_LABELS) == 1);
}

static void who_has_taken_most_is_reported_first(void)
{
    PINION_CHECK(pinion_test_prepare("every 2s top 2"));
    send(1, 100);
    send(2, 400);
    send(3, 300);
    send(2, 200);
    pinion_test_let_pass_ns(2u * SECOND_NS - 1000000);
    PINION_CHECK(!pinion_test_log(0));
    pinion_test_let_pass_ns(1000000);
    PINION_CHECK(strcmp(pinion_test_log(0), "4 packets, 1000 bytes, 4000 bit/s in 2 s; 3 flows known, 0 forgotten so far") == 0);
    PINION_CHECK(strcmp(pinion_test_log(1), "udp 10.0.0.2 port 1000 to 10.9.9.9 port 53: 2 packets, 600 bytes, 2400 bit/s; in all 2 packets, "
                                            "600 bytes, first seen 2 s ago, last 2 s ago") == 0);
    PINION_CHECK(strncmp(pinion_test_log(2), "udp 10.0.0.3 ", 13) == 0 && !pinion_test_log(3));
}

static void nothing_is_reported_of_an_interval_in_which_nothing_came(void)
{
    const struct pinion_label *const first = PINION_LABELS({"rank", "1"}, {"flow", "udp 10.0.0.1 port 1000 to 10.9.9.9 port 53"});
    PINION_CHECK(pinion_test_prepare("every 1s"));
    send(1, 125);
    pinion_test_let_pass_ns(SECOND_NS);
    PINION_CHECK(pinion_test_metric("monitor_top_bits_per_second", first) == 1000);
    pinion_test_let_pass_ns(SECOND_NS);
    PINION_CHECK(!pinion_test_has_metric("monitor_top_bits_per_second", first) && !pinion_test_log(2));
    pinion_test_let_pass_ns(60ull * SECOND_NS);
    PINION_CHECK(!pinion_test_log(2));
    send(1, 250);
    pinion_test_let_pass_ns(SECOND_NS);
    PINION_CHECK(pinion_test_metric("monitor_top_bits_per_second", first) == 2000);
    PINION_CHECK(strstr(pinion_test_log(3), "in all 2 packets, 375 bytes, first seen 63 s ago, last 1 s ago"));
}

static void the_flow_unseen_for_longest_makes_room(void)
{
    PINION_CHECK(pinion_test_prepare("every 2s top 3 flows 2"));
    send(1, 100);
    send(2, 200);
    send(1, 100);
    send(3, 300);
    pinion_test_let_pass_ns(2u * SECOND_NS);
    PINION_CHECK(strstr(pinion_test_log(0), "2 flows known, 1 forgotten so far"));
    PINION_CHECK(strncmp(pinion_test_log(1), "udp 10.0.0.3 ", 13) == 0 && strncmp(pinion_test_log(2), "udp 10.0.0.1 ", 13) == 0);
    PINION_CHECK(pinion_test_metric("monitor_flows_forgotten", PINION_NO_LABELS) == 1);
}

/* Compares with a table that is searched from end to end. */
static void many_flows_in_a_small_table_are_counted_as_by_a_plain_list(void)
{
    enum { ROOM = 16, SENDERS = 40 };
    uint64_t bytes[SENDERS] = {0}, seen[SENDERS] = {0}, now = 0, expected_forgotten = 0;
    uint32_t random = 1;
    PINION_CHECK(pinion_test_prepare("every 1s top 1 flows 16"));
    for (int step = 0; step < 5000; step++) {
        random = random * 1664525 + 1013904223;
        const uint8_t sender = (uint8_t)((random >> 16) % SENDERS);
        const size_t len = 60 + (random >> 24);
        if (!seen[sender]) {
            int there = 0, oldest = -1;
            for (int other = 0; other < SENDERS; other++) {
                there += seen[other] != 0;
                if (seen[other] && (oldest < 0 || seen[other] < seen[oldest]))
                    oldest = other;
            }
            if (there == ROOM) {
                seen[oldest] = bytes[oldest] = 0;
                expected_forgotten++;
            }
        }
        seen[sender] = ++now;
        bytes[sender] += len;
        send(sender, len);
    }
    pinion_test_let_pass_ns(SECOND_NS);
    int most = 0;
    for (int sender = 0; sender < SENDERS; sender++)
        if (bytes[sender] > bytes[most])
            most = sender;
    char flow[64];
    snprintf(flow, sizeof flow, "udp 10.0.0.%d port 1000 to 10.9.9.9 port 53", most);
    PINION_CHECK(pinion_test_metric("monitor_top_bits_per_second", PINION_LABELS({"rank", "1"}, {"flow", flow})) == (int64_t)bytes[most] * 8);
    PINION_CHECK(pinion_test_metric("monitor_flows_forgotten", PINION_NO_LABELS) == (int64_t)expected_forgotten && expected_forgotten > 100);
}

PINION_TESTS(everything_passes_untouched_rubbish_included, who_has_taken_most_is_reported_first,
             nothing_is_reported_of_an_interval_in_which_nothing_came, the_flow_unseen_for_longest_makes_room,
             many_flows_in_a_small_table_are_counted_as_by_a_plain_list)
