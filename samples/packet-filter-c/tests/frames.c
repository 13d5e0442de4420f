/* The function as a node sees it, frame by frame. Another test compares its verdicts with those of the Rust version, on
 * a node. */
#include <string.h>

#include <pinion_test.h>

/* Makes a segment from 10.0.0.1, port 1000, to 10.0.0.2. */
static size_t segment(uint8_t frame[54], uint16_t port, uint8_t flags)
{
    static const uint8_t to_ip[] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2};
    memset(frame, 0, 54);
    memcpy(frame, to_ip, sizeof to_ip);
    pinion_store16(frame + 34, 1000);
    pinion_store16(frame + 36, port);
    frame[46] = 0x50;
    frame[47] = flags;
    return 54;
}

static bool passes(uint16_t port, uint8_t flags)
{
    uint8_t frame[54];
    const size_t len = segment(frame, port, flags);
    return pinion_test_deliver_one(frame, len).outcome == PINION_TEST_SENT;
}

static void the_first_line_that_fits_decides(void)
{
    PINION_CHECK(pinion_test_prepare("deny tcp 81 from 10.0.0.0/24\nallow tcp 80-90\ndefault deny"));
    PINION_CHECK(passes(80, PINION_TCP_SYN) && !passes(81, PINION_TCP_SYN) && passes(90, PINION_TCP_SYN) && !passes(91, PINION_TCP_SYN));
}

static void networks_bound_who_is_meant(void)
{
    PINION_CHECK(pinion_test_prepare("allow from 10.0.0.99/24 to 10.0.0.2\ndefault deny"));
    PINION_CHECK(passes(80, PINION_TCP_SYN));
    PINION_CHECK(pinion_test_prepare("allow from 10.0.1.0/24\nallow to fd00::/8\ndefault deny"));
    PINION_CHECK(!passes(80, PINION_TCP_SYN));
}

static void a_segment_of_a_connection_is_told_from_its_first(void)
{
    PINION_CHECK(pinion_test_prepare("allow tcp established\ndefault deny"));
    PINION_CHECK(!passes(80, PINION_TCP_SYN) && passes(80, PINION_TCP_SYN | PINION_TCP_ACK) && passes(80, PINION_TCP_RST));
}

static void every_truncation_is_dropped(void)
{
    uint8_t frame[54];
    PINION_CHECK(pinion_test_prepare("default allow"));
    for (size_t len = 0; len < segment(frame, 80, PINION_TCP_ACK); len++)
        PINION_CHECK(pinion_test_deliver_one(frame, len).outcome == PINION_TEST_DROPPED);
}

enum { PART_PAYLOAD = 32, PART_LEN = 14 + 40 + 8 + PART_PAYLOAD };

/* Returns whether an IPv6 fragment passes whose next header is this protocol. If it is the first, it has `options`
 * bytes of destination options before a segment to a port. */
static bool part_passes(uint8_t next_header, uint16_t offset, size_t options, uint16_t port)
{
    uint8_t frame[PART_LEN + 64] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 44, 64, 0xfd};
    frame[14 + 24] = 0xfd;
    pinion_store16(frame + 18, (uint16_t)(8 + options + PART_PAYLOAD));
    frame[54] = options ? 60 : next_header;
    pinion_store16(frame + 56, offset | 1);
    frame[61] = 9;
    if (options) {
        const uint8_t header[] = {next_header, (uint8_t)(options / 8 - 1), 1, (uint8_t)(options - 4)};
        memcpy(frame + 62, header, sizeof header);
    }
    uint8_t *segment = frame + 62 + options;
    pinion_store16(segment, 1000);
    pinion_store16(segment + 2, port);
    segment[12] = 0x50;
    return pinion_test_deliver_one(frame, PART_LEN + options).outcome == PINION_TEST_SENT;
}

static void no_fragment_of_ipv6_reaches_into_a_header_already_judged_whatever_it_says(void)
{
    static const uint8_t next_headers[] = {6, 17, 59, 44, 0, 60, 50, 254};
    PINION_CHECK(pinion_test_prepare("deny tcp 22\ndefault allow"));
    PINION_CHECK(part_passes(PINION_TCP, 0, 0, 80) && !part_passes(PINION_TCP, 0, 0, 22));
    PINION_CHECK(part_passes(PINION_TCP, 0, 8, 80) && !part_passes(PINION_TCP, 0, 8, 22));
    /* Rejected, as a later fragment could replace the bytes by which they would be judged. */
    PINION_CHECK(!part_passes(PINION_TCP, 0, 16, 80) && !part_passes(PINION_TCP, 0, 64, 80));
    for (size_t i = 0; i < sizeof next_headers; i++) {
        PINION_CHECK(!part_passes(next_headers[i], 8, 0, 22) && !part_passes(next_headers[i], 16, 0, 22));
        PINION_CHECK(part_passes(next_headers[i], 24, 0, 22) && part_passes(next_headers[i], 1232, 0, 22));
    }
}

static void denials_are_reported_at_most_every_ten_seconds(void)
{
    PINION_CHECK(pinion_test_prepare("default deny"));
    passes(80, 0);
    passes(80, 0);
    PINION_CHECK(strcmp(pinion_test_last_log(), "1 packets denied so far") == 0 && !pinion_test_log(1));
    pinion_test_let_pass_ns(10000000000);
    passes(80, 0);
    PINION_CHECK(strcmp(pinion_test_last_log(), "3 packets denied so far") == 0);
}

static void packets_are_counted_by_what_became_of_them(void)
{
    uint8_t frame[54];
    PINION_CHECK(pinion_test_prepare("allow tcp 80\ndefault deny"));
    for (int i = 0; i < 5; i++)
        passes(i < 3 ? 80 : 81, 0);
    pinion_test_deliver_one(frame, segment(frame, 80, 0) - 41);
    PINION_CHECK(pinion_test_metric("packet_filter_packets_allowed", PINION_NO_LABELS) == 3);
    PINION_CHECK(pinion_test_metric("packet_filter_packets_denied", PINION_LABELS({"reason", "policy"})) == 2);
    PINION_CHECK(pinion_test_metric("packet_filter_packets_denied", PINION_LABELS({"reason", "unreadable"})) == 1);
}

PINION_TESTS(the_first_line_that_fits_decides, networks_bound_who_is_meant, a_segment_of_a_connection_is_told_from_its_first,
             every_truncation_is_dropped, no_fragment_of_ipv6_reaches_into_a_header_already_judged_whatever_it_says,
             denials_are_reported_at_most_every_ten_seconds,
             packets_are_counted_by_what_became_of_them)
