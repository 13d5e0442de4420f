/* The module's exported entry points, of a function with sockets. */
#if defined(__wasm__)

#include <stdio.h>

#include <pinion/net.h>

#include "../export.h"
#include "library.h"

static int32_t prepare(void)
{
    size_t len;
    const uint8_t *config = pinion_read_config(&len);
    return config ? pinion_net_prepare_(&pinion_net_module_, config, len) : PINION_INIT_STATUS_CONFIG_REFUSED;
}

EXPORT(PINION_EXPORT_ABI_PREFIX TEXT(PINION_ABI_VERSION), void pinion_exported_abi(void)) {}

EXPORT(PINION_EXPORT_INIT, int32_t pinion_exported_init(void))
{
    pinion_log_open();
    pinion_metrics_open();
    const int32_t status = prepare();
    pinion_metrics_close();
    /* Otherwise every instance would output again what `init` has left in the buffers. */
    fflush(NULL);
    return status;
}

EXPORT(PINION_EXPORT_POOL, uint32_t pinion_exported_pool(void))
{
    return pinion_net_pool_();
}

EXPORT(PINION_EXPORT_METRICS, uint32_t pinion_exported_metrics(void))
{
    return (uint32_t)(uintptr_t)pinion_metrics_header();
}

EXPORT(PINION_EXPORT_RUN, void pinion_exported_run(void))
{
    pinion_net_run_();
}

#endif
