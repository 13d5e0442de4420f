/* A real node's calls. */
#if defined(__wasm__)

#include "internal.h"

/* An address as the contract has it, and a length. */
#define AT(place) (int32_t)(uintptr_t)(place)
#define LEN(len) (int32_t)(len)

void pinion_host_log(enum pinion_log_level level, const char *text, size_t len)
{
    pinion_import_log((int32_t)level, AT(text), LEN(len));
}

uint64_t pinion_host_clock(void)
{
    return (uint64_t)pinion_import_clock();
}

int32_t pinion_host_random(void *bytes, size_t len)
{
    return pinion_import_random(AT(bytes), LEN(len));
}

size_t pinion_host_config(void *bytes, size_t capacity)
{
    return (size_t)pinion_import_config(AT(bytes), LEN(capacity));
}

void pinion_host_yield(void)
{
    pinion_import_yield();
}

void pinion_host_panic(const char *text, size_t len)
{
    pinion_import_panic(AT(text), LEN(len));
    __builtin_trap();
}

#endif
