/* The module's exported entry points. */
#include <stdio.h>

#include "internal.h"

static int32_t prepare(void)
{
    const struct pinion_function *function = &pinion_module_.function;
    const int forms = (function->packet != NULL) + (function->batch != NULL) + (function->run != NULL);
    if (forms != 1)
        return pinion_refuse("a function has one of .packet, .batch and .run, and this has %d of them", forms);
    if (pinion_module_.function.run && pinion_module_.function.expire)
        return pinion_refuse("a function with .run waits by pinion_wait_until, and its .expire would never be called");
    size_t len;
    uint8_t *config = pinion_read_config(&len);
    if (!config)
        return PINION_INIT_STATUS_CONFIG_REFUSED;
    int refused = 0;
    if (pinion_module_.function.init)
        refused = pinion_module_.function.init(config, len);
    else if (len > 0)
        refused = pinion_refuse("this function has no configuration, but was given %zu bytes", len);
    return refused ? PINION_INIT_STATUS_CONFIG_REFUSED : PINION_INIT_STATUS_READY;
}

int32_t pinion_prepare(void)
{
    pinion_metrics_open();
    const int32_t status = prepare();
    pinion_metrics_close();
    return status;
}

#if defined(__wasm__)

#include "export.h"

static struct pinion_pool_header header;

EXPORT(PINION_EXPORT_ABI_PREFIX TEXT(PINION_ABI_VERSION), void pinion_exported_abi(void)) {}

EXPORT(PINION_EXPORT_INIT, int32_t pinion_exported_init(void))
{
    pinion_log_open();
    const int32_t status = pinion_prepare();
    /* Otherwise every instance would output again what `init` has left in the buffers. */
    fflush(NULL);
    return status;
}

EXPORT(PINION_EXPORT_POOL, uint32_t pinion_exported_pool(void))
{
    header = (struct pinion_pool_header){
        .magic = PINION_POOL_MAGIC,
        .slot_count = pinion_module_.slot_count,
        .slot_size = PINION_SLOT_SIZE,
        .slots = (uint32_t)(uintptr_t)pinion_module_.slots,
        .ring_entries = pinion_module_.slot_count,
        .rx_ring = (uint32_t)(uintptr_t)pinion_module_.rx,
        .tx_ring = (uint32_t)(uintptr_t)pinion_module_.tx,
        .own_slots = pinion_module_.function.own_slots,
    };
    return (uint32_t)(uintptr_t)&header;
}

EXPORT(PINION_EXPORT_METRICS, uint32_t pinion_exported_metrics(void))
{
    return (uint32_t)(uintptr_t)pinion_metrics_header();
}

EXPORT(PINION_EXPORT_RUN, void pinion_exported_run(void))
{
    pinion_pool_open();
    if (pinion_module_.function.start)
        pinion_module_.function.start();
    if (pinion_module_.function.run)
        pinion_loop();
    else
        while (!pinion_is_finished())
            pinion_serve(pinion_host_wait(pinion_wake_time()));
}

#endif
