/* Reads frames from its input, each after its length in two bytes, and prints a line with each frame's headers. With another pair of
 * addresses and ports as arguments, it also prints the changed frame. */
#include <stdio.h>
#include <string.h>

#include <pinion_test.h>

static void handle(pinion_packet *packet)
{
    pinion_drop(packet);
}

PINION_FUNCTION(.packet = handle);

static void print_bytes(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        printf("%02x", bytes[i]);
    putchar(' ');
}

static void print_headers(const struct pinion_headers *it)
{
    printf("%u %u ", it->protocol, it->vlan_tags);
    print_bytes(it->source, it->version == 4 ? 4 : 16);
    print_bytes(it->destination, it->version == 4 ? 4 : 16);
    if (it->has_ports)
        printf("ports %u %u ", it->source_port, it->destination_port);
    if (it->has_tcp_flags)
        printf("flags %u ", it->tcp_flags);
    if (it->has_icmp)
        printf("icmp %u %u %d ", it->icmp_type, it->icmp_code, it->is_icmp_error);
    if (it->is_echo)
        printf("echo %u ", it->echo_id);
    if (it->is_fragment)
        printf("fragment %u %u %d ", it->fragment_id, it->fragment_offset, it->more_fragments);
    struct pinion_flow_key flow;
    if (pinion_flow_of(it, &flow)) {
        const struct pinion_flow_key reversed = pinion_flow_reversed(&flow), both_ways = pinion_flow_both_ways(&flow);
        printf("flow ");
        print_bytes((const uint8_t *)&flow, sizeof flow);
        print_bytes((const uint8_t *)&reversed, sizeof reversed);
        print_bytes((const uint8_t *)&both_ways, sizeof both_ways);
    }
    printf("at %zu %zu %zu %zu ", it->network, it->transport, it->payload, it->end);
}

int main(void)
{
    static const char *const unreadable[] = {"", "not-ip", "malformed", "too-many-headers", "overlapping-fragment"};
    static const uint8_t source[16] = {10, 1, 2, 3, 4}, destination[16] = {172, 31, 255, 254, 1};
    uint8_t len_bytes[2];
    while (fread(len_bytes, 1, 2, stdin) == 2) {
        /* A copy of exactly this length, so that the sanitizer detects reads beyond it. */
        const size_t len = pinion_load16(len_bytes);
        uint8_t frame[len > 0 ? len : 1];
        if (fread(frame, 1, len, stdin) != len)
            return 1;
        struct pinion_headers headers;
        const enum pinion_unreadable error = pinion_headers_of(frame, len, &headers);
        if (error != PINION_READABLE) {
            puts(unreadable[error]);
            continue;
        }
        print_headers(&headers);
        pinion_set_addresses(&headers, frame, len, source, destination);
        pinion_set_ports(&headers, frame, len, 4321, 80);
        print_bytes(frame, len);
        putchar('\n');
    }
    return 0;
}
