/* The calls of a real node. */
#if defined(__wasm__)

#include "internal.h"

/* An address and a length in the contract's types. */
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

uint64_t pinion_host_keep_alive_until(uint64_t until_ns)
{
    const int64_t kept_ns = pinion_import_keep_alive_until(until_ns > INT64_MAX ? INT64_MAX : (int64_t)until_ns);
    return kept_ns > 0 ? (uint64_t)kept_ns : 0;
}

uint32_t pinion_host_wait(uint64_t deadline_ns)
{
    int32_t told;
    if (deadline_ns == PINION_NEVER) {
        told = pinion_import_wait();
    } else {
        const int64_t until_ns = deadline_ns > INT64_MAX ? INT64_MAX : (int64_t)deadline_ns;
        do
            told = pinion_import_wait_until(until_ns);
        while (told == 0);
    }
    /* The node has written to the rings and slots during the call. */
    __asm__ volatile("" ::: "memory");
    return told > 0 ? (uint32_t)told : 0;
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

int32_t pinion_host_state_open(const char *name, size_t len)
{
    return pinion_import_state_open(AT(name), LEN(len));
}

int32_t pinion_host_state_get(int32_t field, const void *key, size_t key_len, void *value, size_t capacity)
{
    return pinion_import_state_get(field, AT(key), LEN(key_len), AT(value), LEN(capacity));
}

int32_t pinion_host_state_put(int32_t field, const void *key, size_t key_len, const void *value, size_t len)
{
    return pinion_import_state_put(field, AT(key), LEN(key_len), AT(value), LEN(len));
}

int32_t pinion_host_state_cas(int32_t field, const void *key, size_t key_len, const void *expected, int32_t expected_len, const void *value,
                              size_t len)
{
    return pinion_import_state_cas(field, AT(key), LEN(key_len), AT(expected), expected_len, AT(value), LEN(len));
}

int32_t pinion_host_state_add(int32_t field, const void *key, size_t key_len, int64_t delta, int64_t *sum)
{
    return pinion_import_state_add(field, AT(key), LEN(key_len), delta, AT(sum));
}

int32_t pinion_host_state_expire(int32_t field, const void *key, size_t key_len, int64_t ttl_ms)
{
    return pinion_import_state_expire(field, AT(key), LEN(key_len), ttl_ms);
}

int32_t pinion_host_state_delete(int32_t field, const void *key, size_t key_len)
{
    return pinion_import_state_delete(field, AT(key), LEN(key_len));
}

/* --- wasi-nn. ---------------------------------------------------------------------------------------------------------------------- */

#define NN_IMPORT(name) __attribute__((import_module("wasi_ephemeral_nn"), import_name(name)))

NN_IMPORT("load_by_name") extern int32_t pinion_import_nn_load_by_name(int32_t name, int32_t len, int32_t graph);
NN_IMPORT("init_execution_context") extern int32_t pinion_import_nn_init_execution_context(int32_t graph, int32_t context);
NN_IMPORT("set_input") extern int32_t pinion_import_nn_set_input(int32_t context, int32_t index, int32_t tensor);
NN_IMPORT("compute") extern int32_t pinion_import_nn_compute(int32_t context);
NN_IMPORT("get_output")
extern int32_t pinion_import_nn_get_output(int32_t context, int32_t index, int32_t buffer, int32_t capacity, int32_t size);

/* A tensor as the interface's record. */
struct record {
    int32_t shape;
    int32_t rank;
    uint8_t element;
    int32_t data;
    int32_t len;
};
_Static_assert(sizeof(struct record) == 20, "the interface's record");

int32_t pinion_host_nn_load_by_name(const char *name, size_t len, uint32_t *graph)
{
    return pinion_import_nn_load_by_name(AT(name), LEN(len), AT(graph));
}

int32_t pinion_host_nn_init_execution_context(uint32_t graph, uint32_t *context)
{
    return pinion_import_nn_init_execution_context((int32_t)graph, AT(context));
}

int32_t pinion_host_nn_set_input(uint32_t context, uint32_t index, const struct pinion_tensor *tensor)
{
    const struct record record = {AT(tensor->shape), LEN(tensor->rank), (uint8_t)tensor->element, AT(tensor->data), LEN(tensor->len)};
    /* The node reads what the compiler may not have stored yet. */
    __asm__ volatile("" ::"r"(&record) : "memory");
    return pinion_import_nn_set_input((int32_t)context, (int32_t)index, AT(&record));
}

int32_t pinion_host_nn_compute(uint32_t context)
{
    return pinion_import_nn_compute((int32_t)context);
}

int32_t pinion_host_nn_get_output(uint32_t context, uint32_t index, void *data, size_t capacity, uint32_t *size)
{
    return pinion_import_nn_get_output((int32_t)context, (int32_t)index, AT(data), LEN(capacity), AT(size));
}

#endif
