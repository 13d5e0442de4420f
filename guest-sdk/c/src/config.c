/* The configuration. */
#include <stdlib.h>

#include "internal.h"

uint8_t *pinion_read_config(size_t *len)
{
    *len = pinion_host_config(NULL, 0);
    uint8_t *config = malloc(*len + 1);
    if (!config) {
        pinion_refuse("there is no memory for a configuration of %zu bytes", *len);
        return NULL;
    }
    pinion_host_config(config, *len);
    config[*len] = 0;
    return config;
}
