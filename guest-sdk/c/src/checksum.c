#include <string.h>

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
    /* Overflow would need 2^34 bytes. */
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

/* RFC 1624, equation 3, for a part that has changed: takes the sum of the old words' complements and the sum of the new words. */
static uint16_t updated(uint16_t checksum, uint64_t complements, uint64_t new_words)
{
    const uint16_t sum = complement(fold(complement(checksum) + complements + new_words));
    /* The sum is zero. If the new part is zero, the data may be all zero, and then only 0xffff is correct. */
    return sum == 0 && new_words == 0 ? 0xffff : sum;
}

uint16_t pinion_checksum_update(uint16_t checksum, uint16_t old_word, uint16_t new_word)
{
    return old_word == new_word ? checksum : updated(checksum, complement(old_word), new_word);
}

uint16_t pinion_checksum_update_bytes(uint16_t checksum, const void *old_bytes, const void *new_bytes, size_t len)
{
    if (len % 2 != 0)
        pinion_panic("a checksum cannot be updated for a part of %zu bytes: its length must be even", len);
    if (len == 0 || memcmp(old_bytes, new_bytes, len) == 0)
        return checksum;
    /* Each word's complement is its difference from all ones. */
    uint64_t complements = 0, new_words = 0;
    for (size_t at = 0; at < len; at += 2) {
        complements += complement(pinion_load16((const uint8_t *)old_bytes + at));
        new_words += pinion_load16((const uint8_t *)new_bytes + at);
    }
    return updated(checksum, complements, new_words);
}
