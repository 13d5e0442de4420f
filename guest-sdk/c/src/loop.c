/* Waiting, for functions with a loop of their own. pinion_serve serves all other functions. */
#include <string.h>

#include "internal.h"

static struct {
    bool is_running;
    /* Descriptors that the node has reported and that are not yet in a batch. */
    uint32_t fresh;
    /* The function's current batch. */
    pinion_packet *packets[PINION_BATCH_PACKETS_MAX];
    size_t count;
} loop;

static void end_batch(void)
{
    pinion_drop_rest(loop.packets, loop.count);
    loop.count = 0;
}

uint32_t pinion_loop(void)
{
    loop.is_running = true;
    loop.fresh = 0;
    loop.count = 0;
    pinion_module_.function.run();
    end_batch();
    loop.is_running = false;
    return loop.fresh;
}

size_t pinion_wait_until(pinion_packet *packets[PINION_BATCH_PACKETS_MAX], uint64_t deadline_ns)
{
    if (!loop.is_running)
        pinion_panic("pinion_wait and pinion_wait_until may only be called in a function's .run");
    end_batch();
    /* Descriptors that return the function's own slots are not reported to it. */
    while (loop.count == 0) {
        if (loop.fresh == 0)
            loop.fresh = pinion_host_wait(deadline_ns);
        if (loop.fresh == 0 && deadline_ns != PINION_NEVER)
            return 0;
        const uint32_t part = loop.fresh < PINION_BATCH_PACKETS_MAX ? loop.fresh : PINION_BATCH_PACKETS_MAX;
        loop.count = pinion_receive(loop.packets, part);
        loop.fresh -= part;
    }
    memcpy(packets, loop.packets, loop.count * sizeof *packets);
    return loop.count;
}

size_t pinion_wait(pinion_packet *packets[PINION_BATCH_PACKETS_MAX])
{
    return pinion_wait_until(packets, PINION_NEVER);
}
