/* Addresses and ports changed in place, with all checksums that cover them. A checksum is updated and not computed (RFC 1624): so one that
 * was wrong stays wrong, and whoever verifies it still finds out that the packet was damaged before. */
#include <string.h>

#include "internal.h"

enum {
    IPV4_CHECKSUM_AT = 10,
    IPV4_ADDRESSES_AT = 12,
    IPV6_ADDRESSES_AT = 8,
    ADDRESS_BYTES_MAX = 16,
};

static void update(uint8_t *field, const uint8_t *old_bytes, const uint8_t *new_bytes, size_t len)
{
    pinion_store16(field, pinion_checksum_update_bytes(pinion_load16(field), old_bytes, new_bytes, len));
}

/* Brings the transport's checksum up to date, where the packet has it. It covers a pseudo header with the addresses, too, but for the ICMP of
 * IPv4, of which nothing is changed here that it covers. */
static void update_transport(const struct pinion_headers *headers, uint8_t *frame, const uint8_t *old_bytes, const uint8_t *new_bytes, size_t len)
{
    if (headers->is_fragment && headers->fragment_offset > 0)
        return;
    size_t offset;
    switch (headers->protocol) {
    case PINION_TCP:
        offset = 16;
        break;
    case PINION_UDP:
        offset = 6;
        break;
    case PINION_ICMPV6:
        offset = 2;
        break;
    default:
        return;
    }
    if (headers->transport + offset + 2 > headers->end)
        return;
    uint8_t *field = frame + headers->transport + offset;
    if (headers->protocol == PINION_UDP && pinion_load16(field) == 0)
        return;
    update(field, old_bytes, new_bytes, len);
    /* Zero would say that there is none. */
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
