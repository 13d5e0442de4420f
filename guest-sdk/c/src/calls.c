/* Calls of the node that take little more than to make them. */
#include "internal.h"

uint64_t pinion_now_ns(void)
{
    return pinion_host_clock();
}

uint64_t pinion_keep_alive_until(uint64_t until_ns)
{
    return pinion_host_keep_alive_until(until_ns);
}

void pinion_random(void *bytes, size_t len)
{
    uint8_t *rest = bytes;
    while (len > 0) {
        const size_t part = len < PINION_RANDOM_BYTES_MAX ? len : PINION_RANDOM_BYTES_MAX;
        const int32_t error = pinion_host_random(rest, part);
        if (error == PINION_ERRNO_TOO_LONG) {
            /* All calls of this turn together have moved as many bytes as they may: let others run first. */
            pinion_host_yield();
            continue;
        }
        if (error != PINION_ERRNO_OK)
            pinion_panic("the node gave no random bytes: errno %d", (int)error);
        rest += part;
        len -= part;
    }
}

void pinion_yield(void)
{
    pinion_host_yield();
}
