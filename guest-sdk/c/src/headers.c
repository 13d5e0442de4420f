/* Reads all of a frame's headers once. Nothing here reads beyond the frame. */
#include <string.h>

#include "internal.h"

enum {
    VLAN_TAGS_MAX = 2,
    /* More than if each extension header of RFC 8200 occurred once. */
    EXTENSIONS_MAX = 8,
    MAC_ADDRESSES = 12,
    IPV4_HEADER_MIN = 20,
    IPV6_HEADER = 40,
    TCP_HEADER_MIN = 20,
    /* Up to and including the flags. */
    TCP_HEADER_JUDGED = 14,
    UDP_HEADER = 8,
    ICMP_HEADER = 8,
    /* The first bytes of an IPv6 datagram, which must hold the fields that its first fragment is judged by, including extension headers
     * after the fragment header. No later fragment may begin there: its own Next Header does not count, only that of the first fragment
     * (RFC 8200, 4.5). */
    JUDGED_MAX_V6 = 24,
};

enum {
    HOP_BY_HOP = 0,
    ROUTING = 43,
    FRAGMENT = 44,
    DESTINATION_OPTIONS = 60,
};

static bool is_later_fragment(const struct pinion_headers *headers)
{
    return headers->is_fragment && headers->fragment_offset > 0;
}

/* Records a fragment, unless it is the whole datagram. */
static void note_fragment(struct pinion_headers *headers, uint32_t id, uint16_t offset, bool more)
{
    if (!more && offset == 0)
        return;
    headers->is_fragment = true;
    headers->fragment_id = id;
    headers->fragment_offset = offset;
    headers->more_fragments = more;
}

/* Returns how many bytes of a protocol's header contain the fields that are read here. */
static size_t judged_bytes(uint8_t protocol)
{
    switch (protocol) {
    case PINION_TCP:
        return TCP_HEADER_JUDGED;
    case PINION_UDP:
        return UDP_HEADER;
    case PINION_ICMPV6:
        return ICMP_HEADER;
    default:
        return 0;
    }
}

static void read_icmp(struct pinion_headers *headers, const uint8_t *header)
{
    const bool v4 = headers->version == 4;
    const uint8_t type = header[0];
    headers->has_icmp = true;
    headers->icmp_type = type;
    headers->icmp_code = header[1];
    headers->is_echo = v4 ? type == 8 || type == 0 : type == 128 || type == 129;
    if (headers->is_echo)
        headers->echo_id = pinion_load16(header + 4);
    /* Includes redirects, which quote a packet as well. */
    headers->is_icmp_error = v4 ? type == 3 || type == 4 || type == 5 || type == 11 || type == 12 : type >= 1 && type < 128;
}

static enum pinion_unreadable read_transport(struct pinion_headers *headers, const uint8_t *frame)
{
    if (headers->transport > headers->end)
        return PINION_MALFORMED;
    const uint8_t *header = frame + headers->transport;
    const size_t rest = headers->end - headers->transport;
    switch (headers->protocol) {
    case PINION_TCP: {
        const size_t len = rest < TCP_HEADER_MIN ? 0 : (size_t)(header[12] >> 4) * 4;
        if (len < TCP_HEADER_MIN || len > rest)
            return PINION_MALFORMED;
        headers->has_tcp_flags = true;
        headers->tcp_flags = header[13];
        headers->payload = headers->transport + len;
        break;
    }
    case PINION_UDP:
        if (rest < UDP_HEADER)
            return PINION_MALFORMED;
        headers->payload = headers->transport + UDP_HEADER;
        break;
    default:
        /* The ICMP of the other version of IP has no meaning. */
        if (headers->protocol != (headers->version == 4 ? PINION_ICMP : PINION_ICMPV6))
            return PINION_READABLE;
        if (rest >= ICMP_HEADER) {
            read_icmp(headers, header);
            headers->payload = headers->transport + ICMP_HEADER;
        } else if (headers->is_fragment) {
            /* A later fragment would bring the type by which the message is judged. */
            return PINION_MALFORMED;
        }
        return PINION_READABLE;
    }
    headers->has_ports = true;
    headers->source_port = pinion_load16(header);
    headers->destination_port = pinion_load16(header + 2);
    return PINION_READABLE;
}

static enum pinion_unreadable read_ipv4(struct pinion_headers *headers, const uint8_t *frame, size_t len)
{
    const size_t network = headers->network;
    const uint8_t *header = frame + network;
    if (len - network < IPV4_HEADER_MIN)
        return PINION_MALFORMED;
    const size_t header_len = (size_t)(header[0] & 0x0f) * 4;
    const size_t total_len = pinion_load16(header + 2);
    if (header[0] >> 4 != 4 || header_len < IPV4_HEADER_MIN || header_len > total_len || total_len > len - network)
        return PINION_MALFORMED;
    const uint16_t flags = pinion_load16(header + 6);
    note_fragment(headers, pinion_load16(header + 4), (uint16_t)((flags & 0x1fff) * 8), flags & 0x2000);
    headers->version = 4;
    headers->protocol = header[9];
    memcpy(headers->source, header + 12, 4);
    memcpy(headers->destination, header + 16, 4);
    headers->transport = network + header_len;
    headers->end = network + total_len;
    headers->payload = headers->transport;
    if (!is_later_fragment(headers))
        return read_transport(headers, frame);
    /* All fragments of a datagram share the protocol. */
    const bool overlaps = headers->protocol == PINION_TCP && headers->fragment_offset < TCP_HEADER_MIN;
    return overlaps ? PINION_OVERLAPPING_FRAGMENT : PINION_READABLE;
}

/* Finds the protocol after the extension headers, and its offset. For a fragment, also finds the offset of its part of the datagram. */
static enum pinion_unreadable skip_extensions(struct pinion_headers *headers, const uint8_t *frame, uint8_t protocol, size_t *part)
{
    size_t at = headers->network + IPV6_HEADER;
    bool had_fragment_header = false;
    for (int count = 0; count <= EXTENSIONS_MAX; count++) {
        const bool is_extension = protocol == HOP_BY_HOP || protocol == ROUTING || protocol == DESTINATION_OPTIONS || protocol == FRAGMENT;
        if (is_extension && (at > headers->end || headers->end - at < 8))
            return PINION_MALFORMED;
        const uint8_t *header = frame + at;
        if (is_extension && protocol != FRAGMENT) {
            protocol = header[0];
            at += ((size_t)header[1] + 1) * 8;
            continue;
        }
        if (is_extension) {
            /* A fragment of a fragment: no host sends one, and a careful host refuses it. */
            if (had_fragment_header)
                return PINION_TOO_MANY_HEADERS;
            had_fragment_header = true;
            const uint16_t offset = pinion_load16(header + 2);
            protocol = header[0];
            at += 8;
            *part = at;
            note_fragment(headers, pinion_load32(header + 4), offset & 0xfff8, offset & 1);
        } else if (at > headers->end) {
            return PINION_MALFORMED;
        }
        /* A later fragment contains no header, and nothing that looks like one can be trusted. */
        if (!is_extension || is_later_fragment(headers)) {
            headers->protocol = protocol;
            headers->transport = at;
            return PINION_READABLE;
        }
    }
    return PINION_TOO_MANY_HEADERS;
}

static enum pinion_unreadable read_ipv6(struct pinion_headers *headers, const uint8_t *frame, size_t len)
{
    const size_t network = headers->network;
    const uint8_t *header = frame + network;
    if (len - network < IPV6_HEADER || header[0] >> 4 != 6)
        return PINION_MALFORMED;
    const size_t packet_len = IPV6_HEADER + (size_t)pinion_load16(header + 4);
    if (packet_len > len - network)
        return PINION_MALFORMED;
    headers->version = 6;
    memcpy(headers->source, header + 8, 16);
    memcpy(headers->destination, header + 24, 16);
    headers->end = network + packet_len;
    size_t part = 0;
    const enum pinion_unreadable error = skip_extensions(headers, frame, header[6], &part);
    if (error)
        return error;
    headers->payload = headers->transport;
    if (is_later_fragment(headers))
        return headers->fragment_offset < JUDGED_MAX_V6 ? PINION_OVERLAPPING_FRAGMENT : PINION_READABLE;
    /* Otherwise a later fragment could overwrite the rest. */
    if (headers->is_fragment && headers->transport - part + judged_bytes(headers->protocol) > JUDGED_MAX_V6)
        return PINION_TOO_MANY_HEADERS;
    return read_transport(headers, frame);
}

enum pinion_unreadable pinion_headers_of(const uint8_t *frame, size_t len, struct pinion_headers *headers)
{
    memset(headers, 0, sizeof *headers);
    size_t at = MAC_ADDRESSES;
    for (int tags = 0; tags <= VLAN_TAGS_MAX; tags++) {
        if (len < at + 2)
            return PINION_MALFORMED;
        headers->vlan_tags = (uint8_t)tags;
        headers->network = at + 2;
        switch (pinion_load16(frame + at)) {
        case PINION_ETHERTYPE_IPV4:
            return read_ipv4(headers, frame, len);
        case PINION_ETHERTYPE_IPV6:
            return read_ipv6(headers, frame, len);
        case PINION_ETHERTYPE_VLAN:
        case PINION_ETHERTYPE_SERVICE_VLAN:
            at += 4;
            break;
        default:
            return PINION_NOT_IP;
        }
    }
    return PINION_TOO_MANY_HEADERS;
}
