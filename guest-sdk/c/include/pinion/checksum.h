/* The Internet checksum of RFC 1071, its update after a change (RFC 1624), and numbers in network order. */
#ifndef PINION_CHECKSUM_H
#define PINION_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/** Returns the checksum of `data`, as a number: the value for a header's checksum field (pinion_store16). The field must be zero while
 *  the checksum is computed. Over data that includes a correct checksum the result is zero. */
uint16_t pinion_checksum(const void *data, size_t len);

/* Two zeros: in one's complement 0x0000 and 0xffff are both zero, but a receiver treats them differently. Data that are all zero have
 * the checksum 0xffff, and a receiver refuses 0x0000 in its place. Other data with a sum of zero have 0x0000, and a
 * receiver accepts 0xffff as well. pinion_checksum returns the right one. The updates see only what has changed, and return a value that
 * a receiver accepts in any case: the old checksum if nothing has changed; 0x0000 if the new part is not all zero; 0xffff if it is, as
 * all the data may be zero. Some data are never all zero: an IPv4 header, and what is summed with a pseudo header (TCP, UDP, ICMPv6).
 * They never have 0xffff, and 0x0000 can take its place. In UDP's field 0x0000 means that there is no checksum: a checksum of 0x0000 is
 * sent as 0xffff, and a field of 0x0000 is left unchanged. pinion_set_addresses and pinion_set_ports (pinion/headers.h) follow these
 * rules. */

/** Returns the checksum after one 16-bit word of the data that it covers changed from `old_word` to `new_word`. */
uint16_t pinion_checksum_update(uint16_t checksum, uint16_t old_word, uint16_t new_word);

/** Returns the checksum after `len` bytes of the data that it covers, an address for example, changed from `old_bytes` to `new_bytes`.
 *  The changed part must begin at an even offset of the data and have an even length. */
uint16_t pinion_checksum_update_bytes(uint16_t checksum, const void *old_bytes, const void *new_bytes, size_t len);

/** Reads a 16-bit number in network order, at any alignment. */
static inline uint16_t pinion_load16(const void *at)
{
    const uint8_t *bytes = (const uint8_t *)at;
    return (uint16_t)((uint16_t)bytes[0] << 8 | bytes[1]);
}

/** Reads a 32-bit number in network order, at any alignment. */
static inline uint32_t pinion_load32(const void *at)
{
    const uint8_t *bytes = (const uint8_t *)at;
    return (uint32_t)pinion_load16(bytes) << 16 | pinion_load16(bytes + 2);
}

/** Writes a 16-bit number in network order, at any alignment. */
static inline void pinion_store16(void *at, uint16_t number)
{
    uint8_t *bytes = (uint8_t *)at;
    bytes[0] = (uint8_t)(number >> 8);
    bytes[1] = (uint8_t)number;
}

/** Writes a 32-bit number in network order, at any alignment. */
static inline void pinion_store32(void *at, uint32_t number)
{
    pinion_store16(at, (uint16_t)(number >> 16));
    pinion_store16((uint8_t *)at + 2, (uint16_t)number);
}

#endif
