/* The Internet checksum of RFC 1071, its update after a change (RFC 1624), and numbers in network order. */
#ifndef PINION_CHECKSUM_H
#define PINION_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/** The checksum of `data`, as a number: what a header's checksum field must hold (pinion_store16), with zero in the field while it is
 *  computed. Over data that includes a right checksum it gives zero. */
uint16_t pinion_checksum(const void *data, size_t len);

/** The checksum after one 16-bit word of the data that it covers changed from `old_word` to `new_word`. */
uint16_t pinion_checksum_update(uint16_t checksum, uint16_t old_word, uint16_t new_word);

/** The checksum after part of the data that it covers, of `len` bytes, changed from `old_bytes` to `new_bytes`: an address, for example. The
 *  part begins at an even offset of the data, and has an even length. */
uint16_t pinion_checksum_update_bytes(uint16_t checksum, const void *old_bytes, const void *new_bytes, size_t len);

/** The number that lies at an address in network order, wherever that is. */
static inline uint16_t pinion_load16(const void *at)
{
    const uint8_t *bytes = (const uint8_t *)at;
    return (uint16_t)((uint16_t)bytes[0] << 8 | bytes[1]);
}

/** As pinion_load16, of four bytes. */
static inline uint32_t pinion_load32(const void *at)
{
    const uint8_t *bytes = (const uint8_t *)at;
    return (uint32_t)pinion_load16(bytes) << 16 | pinion_load16(bytes + 2);
}

/** Writes a number in network order. */
static inline void pinion_store16(void *at, uint16_t number)
{
    uint8_t *bytes = (uint8_t *)at;
    bytes[0] = (uint8_t)(number >> 8);
    bytes[1] = (uint8_t)number;
}

/** As pinion_store16, of four bytes. */
static inline void pinion_store32(void *at, uint32_t number)
{
    pinion_store16(at, (uint16_t)(number >> 16));
    pinion_store16((uint8_t *)at + 2, (uint16_t)number);
}

#endif
