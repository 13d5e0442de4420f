/* Changes addresses and ports in place, with all checksums that cover them. A checksum is updated, not recomputed (RFC 1624): a wrong
 * one stays wrong, so that the receiver still detects that the packet was damaged before. */
#include <string.h>

#include "internal.h"

enum {
    IPV4_CHECKSUM_AT = 10,
    IPV4_ADDRESSES_AT = 12,
    IPV6_ADDRESSES_AT = 8,
    ADDRESS_BYTES_MAX = 16,
};

/* Updates a checksum of data that are never all zero, as they contain a version or a pseudo header. If their sum is zero, the checksum
 * is 0x0000. */
static void update(uint8_t *field, const uint8_t *old_bytes, const uint8_t *new_bytes, size_t len)
{
    if (memcmp(old_bytes, new_bytes, len) == 0)
        return;
    const uint16_t sum = pinion_checksum_update_bytes(pinion_load16(field), old_bytes, new_bytes, len);
    pinion_store16(field, sum == 0xffff ? 0 : sum);
}

/* Finds the offset of the transport's checksum in its header, if it covers addresses or ports. That of IPv4's ICMP covers neither. */
static bool checksum_offset_of(const struct pinion_headers *headers, size_t *offset)
{
    switch (headers->protocol) {
    case PINION_TCP:
        *offset = 16;
        return true;
    case PINION_UDP:
        *offset = 6;
        return true;
    case PINION_ICMPV6:
        *offset = 2;
        return headers->version == 6;
    default:
        return false;
    }
}

/* Updates the transport's checksum, if the packet contains it. */
static void update_transport(const struct pinion_headers *headers, uint8_t *frame, const uint8_t *old_bytes, const uint8_t *new_bytes, size_t len)
{
    size_t offset;
    if (headers->is_fragment && headers->fragment_offset > 0)
        return;
    if (!checksum_offset_of(headers, &offset) || headers->transport + offset + 2 > headers->end)
        return;
    uint8_t *field = frame + headers->transport + offset;
    /* In UDP zero means that there is no checksum. */
    if (headers->protocol == PINION_UDP && pinion_load16(field) == 0)
        return;
    update(field, old_bytes, new_bytes, len);
    if (headers->protocol == PINION_UDP && pinion_load16(field) == 0)
        pinion_store16(field, 0xffff);
}

bool pinion_set_addresses(struct pinion_headers *headers, uint8_t *frame, size_t len, const uint8_t *source, const uint8_t *destination)
{
    const bool v4 = headers->version == 4;
    const size_t bytes = v4 ? 4 : 16;
    const size_t at = headers->network + (v4 ? IPV4_ADDRESSES_AT : IPV6_ADDRESSES_AT);
    if (headers->end > len || at + 2 * bytes > headers->end)
        return false;
    uint8_t old_pair[2 * ADDRESS_BYTES_MAX], new_pair[2 * ADDRESS_BYTES_MAX];
    memcpy(old_pair, frame + at, 2 * bytes);
    memcpy(new_pair, source, bytes);
    memcpy(new_pair + bytes, destination, bytes);
    memcpy(frame + at, new_pair, 2 * bytes);
    if (v4)
        update(frame + headers->network + IPV4_CHECKSUM_AT, old_pair, new_pair, 2 * bytes);
    update_transport(headers, frame, old_pair, new_pair, 2 * bytes);
    memcpy(headers->source, new_pair, bytes);
    memcpy(headers->destination, new_pair + bytes, bytes);
    return true;
}

bool pinion_set_ports(struct pinion_headers *headers, uint8_t *frame, size_t len, uint16_t source, uint16_t destination)
{
    if (!headers->has_ports || headers->end > len || headers->transport + 4 > headers->end)
        return false;
    uint8_t *ports = frame + headers->transport;
    uint8_t old_ports[4];
    memcpy(old_ports, ports, sizeof old_ports);
    pinion_store16(ports, source);
    pinion_store16(ports + 2, destination);
    update_transport(headers, frame, old_ports, ports, sizeof old_ports);
    headers->source_port = source;
    headers->destination_port = destination;
    return true;
}
