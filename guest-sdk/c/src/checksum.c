#include "internal.h"

static uint16_t fold(uint64_t sum)
{
    while (sum > 0xffff)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static uint64_t sum_of(const uint8_t *bytes, size_t len)
{
    uint64_t sum = 0;
    size_t at = 0;
    /* 2^34 bytes would be needed to overflow. */
    for (; at + 4 <= len; at += 4)
        sum += pinion_load32(bytes + at);
    uint8_t last[4] = {0};
    for (size_t i = 0; at + i < len; i++)
        last[i] = bytes[at + i];
    return sum + pinion_load32(last);
}

static uint16_t complement(uint16_t number)
{
    return (uint16_t)~number;
}

uint16_t pinion_checksum(const void *data, size_t len)
{
    return complement(fold(sum_of(data, len)));
}

uint16_t pinion_checksum_update(uint16_t checksum, uint16_t old_word, uint16_t new_word)
{
    return complement(fold((uint64_t)complement(checksum) + complement(old_word) + new_word));
}

uint16_t pinion_checksum_update_bytes(uint16_t checksum, const void *old_bytes, const void *new_bytes, size_t len)
{
    if (len % 2 != 0)
        pinion_panic("a part of %zu bytes cannot be brought into a checksum: its length must be even", len);
    /* Each word's complement is what it lacks to all ones. */
    uint64_t sum = complement(checksum);
    for (size_t at = 0; at < len; at += 2) {
        sum += complement(pinion_load16((const uint8_t *)old_bytes + at));
        sum += pinion_load16((const uint8_t *)new_bytes + at);
    }
    return complement(fold(sum));
}
