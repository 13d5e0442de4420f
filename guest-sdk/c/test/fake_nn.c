/* The fake node's models: functions of the test. */
#include <string.h>

#include "fake.h"

enum {
    MODELS_MAX = 4,
    CONTEXTS_MAX = 8,
    INPUTS_MAX = 4,
    TENSOR_BYTES_MAX = 16384,
};

struct context {
    uint32_t model;
    struct pinion_test_bytes inputs[INPUTS_MAX];
    uint8_t bytes[INPUTS_MAX][TENSOR_BYTES_MAX];
    uint8_t output[TENSOR_BYTES_MAX];
    size_t output_len;
};

static struct pinion_test_model models[MODELS_MAX];
static uint32_t model_count;
static struct context contexts[CONTEXTS_MAX];
static uint32_t context_count;

void pinion_test_grant_model(struct pinion_test_model model)
{
    uint32_t number = 0;
    while (number < model_count && strcmp(models[number].name, model.name) != 0)
        number++;
    PINION_CHECK(number < MODELS_MAX);
    model_count = number < model_count ? model_count : number + 1;
    models[number] = model;
}

int32_t pinion_host_nn_load_by_name(const char *name, size_t len, uint32_t *graph)
{
    for (*graph = 0; *graph < model_count; ++*graph)
        if (strlen(models[*graph].name) == len && memcmp(models[*graph].name, name, len) == 0)
            return PINION_NN_DONE;
    return PINION_NN_NO_MODEL;
}

int32_t pinion_host_nn_init_execution_context(uint32_t graph, uint32_t *context)
{
    if (fake_state_is_initialising())
        return PINION_NN_BUSY;
    if (context_count == CONTEXTS_MAX)
        return PINION_NN_NO_ROOM;
    *context = context_count++;
    contexts[*context] = (struct context){.model = graph};
    return PINION_NN_DONE;
}

int32_t pinion_host_nn_set_input(uint32_t context, uint32_t index, const struct pinion_tensor *tensor)
{
    if (context >= context_count || index >= INPUTS_MAX || tensor->len > TENSOR_BYTES_MAX)
        return PINION_NN_ARGUMENT;
    struct context *place = &contexts[context];
    memcpy(place->bytes[index], tensor->data, tensor->len);
    place->inputs[index] = (struct pinion_test_bytes){place->bytes[index], tensor->len};
    return PINION_NN_DONE;
}

int32_t pinion_host_nn_compute(uint32_t context)
{
    if (context >= context_count)
        return PINION_NN_ARGUMENT;
    struct context *place = &contexts[context];
    place->output_len = 0;
    return models[place->model].run(place->inputs, place->output, TENSOR_BYTES_MAX, &place->output_len) ? PINION_NN_DONE : PINION_NN_FAILED;
}

int32_t pinion_host_nn_get_output(uint32_t context, uint32_t index, void *data, size_t capacity, uint32_t *size)
{
    if (context >= context_count || index > 0 || contexts[context].output_len == 0)
        return PINION_NN_ARGUMENT;
    if (contexts[context].output_len > capacity)
        return PINION_NN_NO_ROOM;
    *size = (uint32_t)contexts[context].output_len;
    memcpy(data, contexts[context].output, *size);
    return PINION_NN_DONE;
}
