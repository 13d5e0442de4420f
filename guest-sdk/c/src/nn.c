/* Models: makes the node's calls, and translates their results. */
#include <string.h>

#include "internal.h"

/* Translates a call's result. One that is not named counts as a failure. */
static enum pinion_nn result_of(int32_t errno_)
{
    switch (errno_) {
    case PINION_NN_DONE:
    case PINION_NN_ARGUMENT:
    case PINION_NN_BUSY:
    case PINION_NN_NO_ROOM:
    case PINION_NN_NO_MODEL:
        return (enum pinion_nn)errno_;
    default:
        return PINION_NN_FAILED;
    }
}

const char *pinion_nn_sentence(enum pinion_nn result)
{
    switch (result) {
    case PINION_NN_DONE:
        return "it is done";
    case PINION_NN_ARGUMENT:
        return "an input or output is not of the type, shape or size that the model has";
    case PINION_NN_BUSY:
        return "the node can't run the model now";
    case PINION_NN_FAILED:
        return "the run failed";
    case PINION_NN_NO_ROOM:
        return "there is no memory for the model's inputs and outputs";
    case PINION_NN_NO_MODEL:
        return "the stage is granted no model of this name: grant it in the chain's manifest";
    }
    return "the call returned an unknown result";
}

int pinion_model_load(pinion_model *model, const char *name)
{
    uint32_t graph = 0;
    const int32_t result = pinion_host_nn_load_by_name(name, strlen(name), &graph);
    *model = (pinion_model){.graph_ = result == PINION_NN_DONE ? graph + 1 : 0};
    if (result == PINION_NN_DONE)
        return 0;
    return pinion_refuse("model \"%s\": %s", name, pinion_nn_sentence(result_of(result)));
}

/* Makes room for a model's inputs and outputs, if there is none yet. */
static int32_t prepare(pinion_model *model)
{
    if (model->context_ != 0)
        return PINION_NN_DONE;
    if (model->graph_ == 0)
        return PINION_NN_NO_MODEL;
    uint32_t context = 0;
    const int32_t result = pinion_host_nn_init_execution_context(model->graph_ - 1, &context);
    if (result == PINION_NN_DONE)
        model->context_ = context + 1;
    return result;
}

enum pinion_nn pinion_model_run(pinion_model *model, const struct pinion_tensor *inputs, size_t count)
{
    int32_t result = prepare(model);
    for (size_t index = 0; index < count && result == PINION_NN_DONE; index++)
        result = pinion_host_nn_set_input(model->context_ - 1, (uint32_t)index, &inputs[index]);
    return result_of(result == PINION_NN_DONE ? pinion_host_nn_compute(model->context_ - 1) : result);
}

enum pinion_nn pinion_model_output(const pinion_model *model, uint32_t index, void *data, size_t len)
{
    uint32_t size = 0;
    if (model->context_ == 0)
        return PINION_NN_ARGUMENT;
    const int32_t result = pinion_host_nn_get_output(model->context_ - 1, index, data, len, &size);
    return result == PINION_NN_DONE && size != len ? PINION_NN_ARGUMENT : result_of(result);
}
