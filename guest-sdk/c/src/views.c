/* Views of single headers, checked to lie within the frame. */
#include "internal.h"

/* Returns the address of `bytes` bytes at `at`, or NULL if they do not all lie within the frame. */
static uint8_t *within(uint8_t *frame, size_t len, size_t at, size_t bytes)
{
    return at <= len && len - at >= bytes ? frame + at : NULL;
}

struct pinion_ethernet *pinion_ethernet_of(uint8_t *frame, size_t len)
{
    return (struct pinion_ethernet *)within(frame, len, 0, sizeof(struct pinion_ethernet));
}

struct pinion_vlan *pinion_vlan_at(uint8_t *frame, size_t len, size_t at)
{
    return (struct pinion_vlan *)within(frame, len, at, sizeof(struct pinion_vlan));
}

struct pinion_ipv4 *pinion_ipv4_at(uint8_t *frame, size_t len, size_t at)
{
    struct pinion_ipv4 *header = (struct pinion_ipv4 *)within(frame, len, at, sizeof(struct pinion_ipv4));
    if (!header || header->version_and_words >> 4 != 4)
        return NULL;
    const size_t total_len = pinion_load16(header->total_len), header_len = pinion_ipv4_len(header);
    return header_len >= sizeof *header && header_len <= total_len && total_len <= len - at ? header : NULL;
}

struct pinion_ipv6 *pinion_ipv6_at(uint8_t *frame, size_t len, size_t at)
{
    struct pinion_ipv6 *header = (struct pinion_ipv6 *)within(frame, len, at, sizeof(struct pinion_ipv6));
    if (!header || header->version_class_label[0] >> 4 != 6)
        return NULL;
    return sizeof *header + pinion_load16(header->payload_len) <= len - at ? header : NULL;
}

struct pinion_tcp *pinion_tcp_at(uint8_t *frame, size_t len, size_t at)
{
    struct pinion_tcp *header = (struct pinion_tcp *)within(frame, len, at, sizeof(struct pinion_tcp));
    if (!header)
        return NULL;
    const size_t header_len = pinion_tcp_len(header);
    return header_len >= sizeof *header && header_len <= len - at ? header : NULL;
}

struct pinion_udp *pinion_udp_at(uint8_t *frame, size_t len, size_t at)
{
    return (struct pinion_udp *)within(frame, len, at, sizeof(struct pinion_udp));
}

struct pinion_icmp *pinion_icmp_at(uint8_t *frame, size_t len, size_t at)
{
    return (struct pinion_icmp *)within(frame, len, at, sizeof(struct pinion_icmp));
}

_Static_assert(sizeof(struct pinion_ethernet) == 14, "an Ethernet header has 14 bytes");
_Static_assert(sizeof(struct pinion_ipv4) == 20, "an IPv4 header has 20 bytes");
_Static_assert(sizeof(struct pinion_ipv6) == 40, "an IPv6 header has 40 bytes");
_Static_assert(sizeof(struct pinion_tcp) == 20, "a TCP header has 20 bytes");
_Static_assert(sizeof(struct pinion_udp) == 8, "a UDP header has 8 bytes");
_Static_assert(sizeof(struct pinion_icmp) == 8, "an ICMP header has 8 bytes");
