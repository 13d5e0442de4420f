/* Views of headers lie within the frame, and checksums are those of RFC 1071 and 1624. */
#include <stdlib.h>
#include <string.h>

#include <pinion_test.h>

static void handle(pinion_packet *packet)
{
    pinion_drop(packet);
}

PINION_FUNCTION(.packet = handle);

enum { LEN_MAX = 80 };

/* A copy of exactly this length, so that the sanitizer detects reads beyond it. */
static uint8_t *exactly(const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, bytes, len);
    return copy;
}

/* Returns whether a view exists exactly from `least` bytes on. */
#define BEGINS_AT(view, least)                                                                                                           \
    for (size_t len = 0; len <= LEN_MAX; len++) {                                                                                        \
        uint8_t *frame = exactly(bytes, len);                                                                                            \
        PINION_CHECK(((view) != NULL) == (len >= (least)));                                                                              \
        free(frame);                                                                                                                     \
    }

static void views_lie_within_the_frame(void)
{
    uint8_t bytes[LEN_MAX] = {0};
    BEGINS_AT(pinion_ethernet_of(frame, len), 14);
    BEGINS_AT(pinion_vlan_at(frame, len, 14), 18);
    BEGINS_AT(pinion_udp_at(frame, len, 34), 42);
    BEGINS_AT(pinion_icmp_at(frame, len, 34), 42);
    PINION_CHECK(!pinion_udp_at(bytes, LEN_MAX, LEN_MAX + 1) && !pinion_udp_at(bytes, LEN_MAX, SIZE_MAX));
}

static void an_ipv4_header_needs_its_options_and_its_whole_packet(void)
{
    uint8_t bytes[LEN_MAX] = {0};
    bytes[14] = 0x46;
    pinion_store16(bytes + 16, 40);
    BEGINS_AT(pinion_ipv4_at(frame, len, 14), 54);
    PINION_CHECK(pinion_ipv4_len(pinion_ipv4_at(bytes, LEN_MAX, 14)) == 24);
    pinion_store16(bytes + 16, 23);
    PINION_CHECK(!pinion_ipv4_at(bytes, LEN_MAX, 14));
    bytes[14] = 0x44;
    PINION_CHECK(!pinion_ipv4_at(bytes, LEN_MAX, 14));
    bytes[14] = 0x65;
    PINION_CHECK(!pinion_ipv4_at(bytes, LEN_MAX, 14));
}

static void an_ipv6_header_needs_its_whole_packet(void)
{
    uint8_t bytes[LEN_MAX] = {0};
    bytes[14] = 0x60;
    pinion_store16(bytes + 18, 8);
    BEGINS_AT(pinion_ipv6_at(frame, len, 14), 62);
    bytes[14] = 0x45;
    PINION_CHECK(!pinion_ipv6_at(bytes, LEN_MAX, 14));
}

static void a_tcp_header_needs_its_options(void)
{
    uint8_t bytes[LEN_MAX] = {0};
    bytes[34 + 12] = 0x60;
    BEGINS_AT(pinion_tcp_at(frame, len, 34), 58);
    bytes[34 + 12] = 0x40;
    PINION_CHECK(!pinion_tcp_at(bytes, LEN_MAX, 34));
}

static void the_example_of_rfc_1071_has_its_checksum(void)
{
    static const uint8_t example[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
    static const uint8_t odd[] = {1, 2, 3}, padded[] = {1, 2, 3, 0};
    PINION_CHECK(pinion_checksum(example, sizeof example) == (uint16_t)~0xddf2);
    PINION_CHECK(pinion_checksum(odd, 3) == pinion_checksum(padded, 4));
}

/* Returns whether a receiver accepts data with this checksum: the sum of all is 0xffff. */
static bool is_accepted(const uint8_t *data, size_t len, uint16_t checksum)
{
    uint32_t sum = checksum;
    for (size_t at = 0; at < len; at += 2)
        sum += pinion_load16(data + at);
    while (sum > 0xffff)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum == 0xffff;
}

static void zeros_have_the_checksum_0xffff(void)
{
    static const uint8_t zeros[64];
    for (size_t len = 0; len <= sizeof zeros; len++)
        PINION_CHECK(pinion_checksum(zeros, len) == 0xffff);
    PINION_CHECK(!is_accepted(zeros, sizeof zeros, 0));
    /* An echo request that is otherwise zero, and its reply. */
    PINION_CHECK(pinion_checksum_update(0xf7ff, 0x0800, 0x0000) == 0xffff);
    PINION_CHECK(pinion_checksum_update(0xffff, 0x0000, 0x0800) == 0xf7ff);
    PINION_CHECK(pinion_checksum_update_bytes(0xf7ff, "\x08\0\0\0", "\0\0\0\0", 4) == 0xffff);
    /* No change. */
    PINION_CHECK(pinion_checksum_update(0xffff, 0, 0) == 0xffff && pinion_checksum_update(0, 7, 7) == 0);
    PINION_CHECK(pinion_checksum_update_bytes(0xffff, zeros, zeros, sizeof zeros) == 0xffff);
}

/* Checks an update of a valid checksum: it stays valid, and equals a recomputed one unless both zeros may be right. */
static void check_update(const uint8_t *before, uint8_t *data, size_t len, size_t at, size_t part, uint16_t checksum)
{
    static const uint8_t zeros[64];
    const uint16_t updated = pinion_checksum_update_bytes(checksum, before + at, data + at, part), right = pinion_checksum(data, len);
    const bool is_same = memcmp(before + at, data + at, part) == 0;
    const bool is_either = right == 0 && memcmp(data + at, zeros, part) == 0;
    PINION_CHECK(is_accepted(data, len, updated));
    PINION_CHECK(is_same ? updated == checksum : updated == right || (is_either && updated == 0xffff));
    if (part == 2)
        PINION_CHECK(pinion_checksum_update(checksum, pinion_load16(before + at), pinion_load16(data + at)) == updated);
}

static void a_receiver_accepts_each_word_after_each_change(void)
{
    static const uint16_t special[] = {0, 1, 2, 0x7fff, 0x8000, 0xfffe, 0xffff};
    for (uint32_t word = 0; word <= 0xffff; word++)
        for (size_t i = 0; i < sizeof special / sizeof *special; i++)
            for (size_t j = 0; j < 3; j++) {
                const uint16_t beside = j == 0 ? 0 : j == 1 ? (uint16_t)~word : (uint16_t)~special[i];
                uint8_t one[4], other[4];
                pinion_store16(one, (uint16_t)word);
                pinion_store16(other, special[i]);
                pinion_store16(one + 2, beside);
                pinion_store16(other + 2, beside);
                check_update(one, other, 4, 0, 2, pinion_checksum(one, 4));
                check_update(other, one, 4, 0, 2, pinion_checksum(other, 4));
                if (is_accepted(one, 4, 0xffff))
                    check_update(one, other, 4, 0, 2, 0xffff);
            }
}

static void a_receiver_accepts_the_updated_checksum_of_any_data(void)
{
    uint8_t data[40], before[40], kinds[20];
    PINION_CHECK(pinion_test_prepare(""));
    for (int round = 0; round < 10000; round++) {
        pinion_random(data, sizeof data);
        pinion_random(kinds, sizeof kinds);
        /* Words with sums of zero far more often than by chance. */
        for (size_t i = 0; i < sizeof kinds; i++)
            if (kinds[i] % 4 != 0)
                memset(data + 2 * i, kinds[i] % 4 == 1 ? 0xff : 0, 2);
        if (round % 16 == 0)
            memset(data, 0, sizeof data);
        memcpy(before, data, sizeof data);
        const uint16_t checksum = pinion_checksum(data, sizeof data);
        const size_t at = 2 * (size_t)(round % 13), part = round % 2 ? 16 : 2;
        pinion_random(data + at, part);
        if (round % 3 == 0)
            memset(data + at, 0, part);
        check_update(before, data, sizeof data, at, part, checksum);
    }
}

static void odd_part(void)
{
    pinion_checksum_update_bytes(0, "abc", "abd", 3);
}

static void a_part_of_odd_length_is_refused(void)
{
    PINION_CHECK(strstr(pinion_test_panic(odd_part), "its length must be even"));
}

PINION_TESTS(views_lie_within_the_frame, an_ipv4_header_needs_its_options_and_its_whole_packet, an_ipv6_header_needs_its_whole_packet,
             a_tcp_header_needs_its_options, the_example_of_rfc_1071_has_its_checksum, zeros_have_the_checksum_0xffff,
             a_receiver_accepts_each_word_after_each_change, a_receiver_accepts_the_updated_checksum_of_any_data,
             a_part_of_odd_length_is_refused)
