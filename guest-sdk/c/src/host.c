/* A real node's calls. */
#if defined(__wasm__)

#include "internal.h"

void pinion_host_log(enum pinion_log_level level, const char *text, size_t len)
{
    pinion_import_log((int32_t)level, (int32_t)(uintptr_t)text, (int32_t)len);
}

uint64_t pinion_host_clock(void)
{
    return (uint64_t)pinion_import_clock();
}

int32_t pinion_host_random(void *bytes, size_t len)
{
    return pinion_import_random((int32_t)(uintptr_t)bytes, (int32_t)len);
}

size_t pinion_host_config(void *bytes, size_t capacity)
{
    return (size_t)pinion_import_config((int32_t)(uintptr_t)bytes, (int32_t)capacity);
}

void pinion_host_yield(void)
{
    pinion_import_yield();
}

void pinion_host_trap(void)
{
    __builtin_trap();
}

#endif
