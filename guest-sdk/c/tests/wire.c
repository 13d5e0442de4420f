/* Views of headers end where the frame does, and checksums are those of RFC 1071 and 1624. */
#include <stdlib.h>
#include <string.h>

#include <pinion_test.h>

static void handle(pinion_packet *packet)
{
    pinion_drop(packet);
}

PINION_FUNCTION(.packet = handle);

enum { LEN_MAX = 80 };

/* A copy of exactly so many bytes, so that the sanitizer sees who reads on. */
static uint8_t *exactly(const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, bytes, len);
    return copy;
}

/* Whether a view is there exactly from `least` bytes on. */
#define BEGINS_AT(view, least)                                                                                                           \
    for (size_t len = 0; len <= LEN_MAX; len++) {                                                                                        \
        uint8_t *frame = exactly(bytes, len);                                                                                            \
        PINION_CHECK(((view) != NULL) == (len >= (least)));                                                                              \
        free(frame);                                                                                                                     \
    }

static void views_end_where_the_frame_does(void)
{
    uint8_t bytes[LEN_MAX] = {0};
    BEGINS_AT(pinion_ethernet_of(frame, len), 14);
    BEGINS_AT(pinion_vlan_at(frame, len, 14), 18);
    BEGINS_AT(pinion_udp_at(frame, len, 34), 42);
    BEGINS_AT(pinion_icmp_at(frame, len, 34), 42);
    PINION_CHECK(!pinion_udp_at(bytes, LEN_MAX, LEN_MAX + 1) && !pinion_udp_at(bytes, LEN_MAX, SIZE_MAX));
}

static void an_ipv4_header_has_its_options_and_its_packet(void)
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

static void an_ipv6_header_has_its_packet(void)
{
    uint8_t bytes[LEN_MAX] = {0};
    bytes[14] = 0x60;
    pinion_store16(bytes + 18, 8);
    BEGINS_AT(pinion_ipv6_at(frame, len, 14), 62);
    bytes[14] = 0x45;
    PINION_CHECK(!pinion_ipv6_at(bytes, LEN_MAX, 14));
}

static void a_tcp_header_has_its_options(void)
{
    uint8_t bytes[LEN_MAX] = {0};
    bytes[34 + 12] = 0x60;
    BEGINS_AT(pinion_tcp_at(frame, len, 34), 58);
    bytes[34 + 12] = 0x40;
    PINION_CHECK(!pinion_tcp_at(bytes, LEN_MAX, 34));
}

static void the_example_of_rfc_1071_comes_out(void)
{
    static const uint8_t example[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
    static const uint8_t odd[] = {1, 2, 3}, padded[] = {1, 2, 3, 0};
    PINION_CHECK(pinion_checksum(example, sizeof example) == (uint16_t)~0xddf2);
    PINION_CHECK(pinion_checksum(odd, 3) == pinion_checksum(padded, 4));
}

static void an_update_gives_what_a_new_computation_gives(void)
{
    uint8_t data[40], before[40];
    PINION_CHECK(pinion_test_prepare(""));
    for (int round = 0; round < 10000; round++) {
        pinion_random(data, sizeof data);
        /* Data of zeroes only has two representations of its sum; headers never are. */
        data[0] |= 1;
        memcpy(before, data, sizeof data);
        const uint16_t checksum = pinion_checksum(data, sizeof data);
        const size_t at = 2 + 2 * (size_t)(round % 11);
        pinion_random(data + at, 16);
        PINION_CHECK(pinion_checksum_update_bytes(checksum, before + at, data + at, 16) == pinion_checksum(data, sizeof data));
        memcpy(data, before, sizeof data);
        pinion_store16(data + at, (uint16_t)round);
        PINION_CHECK(pinion_checksum_update(checksum, pinion_load16(before + at), (uint16_t)round) == pinion_checksum(data, sizeof data));
    }
}

static void odd_part(void)
{
    pinion_checksum_update_bytes(0, "abc", "abd", 3);
}

static void a_part_of_odd_length_is_a_fault(void)
{
    PINION_CHECK(strstr(pinion_test_panic(odd_part), "its length must be even"));
}

PINION_TESTS(views_end_where_the_frame_does, an_ipv4_header_has_its_options_and_its_packet, an_ipv6_header_has_its_packet,
             a_tcp_header_has_its_options, the_example_of_rfc_1071_comes_out, an_update_gives_what_a_new_computation_gives,
             a_part_of_odd_length_is_a_fault)
