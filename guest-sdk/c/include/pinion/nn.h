/* Neural networks that the node runs for a function: named models that the tenant has uploaded, and that the stage was granted. The calls are
 * those of wasi-nn.
 *
 *     [model.cifar]
 *     file = "cifar.onnx"
 *
 *     [[chain]]
 *     name = "classify"
 *     stage = [{ module = "classifier", models = ["cifar"] }]
 *
 * A function that gets ten scores for an image:
 *
 *     static pinion_model model;
 *
 *     static int prepare(const uint8_t *config, size_t len)
 *     {
 *         return pinion_model_load(&model, "cifar");
 *     }
 *
 *     static bool classify(const uint8_t pixels[3072], float scores[10])
 *     {
 *         static const uint32_t shape[] = {1, 32, 32, 3};
 *         const struct pinion_tensor input = {PINION_U8, shape, 4, pixels, 3072};
 *         return pinion_model_run(&model, &input, 1) == PINION_NN_DONE
 *             && pinion_model_output(&model, 0, scores, 10 * sizeof *scores) == PINION_NN_DONE;
 *     }
 *
 * A run happens on another thread of the node. Meanwhile this instance sleeps, and its packets wait. */
#ifndef PINION_NN_H
#define PINION_NN_H

#include <stddef.h>
#include <stdint.h>

/** The result of a call, by wasi-nn's numbers. */
enum pinion_nn {
    /** The call succeeded. */
    PINION_NN_DONE = 0,
    /** An input has another type, shape or size than the model's, or is missing; or there is no such output. */
    PINION_NN_ARGUMENT = 1,
    /** Too many runs of the tenant are waiting, or it has no memory left for one: try again later. Or the function is being initialised, and may run
     *  nothing yet. */
    PINION_NN_BUSY = 4,
    /** The run failed, or took too long. The tenant's log says why. */
    PINION_NN_FAILED = 5,
    /** There is no room: in the instance's memory, for another model, or in the output's buffer. */
    PINION_NN_NO_ROOM = 7,
    /** The stage was granted no model of this name; or the model was never loaded. */
    PINION_NN_NO_MODEL = 8,
};

/** Returns a sentence that describes the result, for the log. */
const char *pinion_nn_sentence(enum pinion_nn result);

/** The type of a tensor's elements, by wasi-nn's numbers. All are stored with their least significant byte first. */
enum pinion_element {
    PINION_F32 = 1,
    PINION_U8 = 3,
    PINION_I32 = 4,
    PINION_I64 = 5,
};

/** An input: its elements, the last axis varying fastest. */
struct pinion_tensor {
    enum pinion_element element;
    /** The number of elements along each axis. */
    const uint32_t *shape;
    /** The number of axes. */
    size_t rank;
    const void *data;
    /** Its size, in bytes. */
    size_t len;
};

/** A model that the stage was granted. With its first run, an instance gets room for its inputs and outputs in the node, which is freed with
 *  the instance: load a model once. The members are private to the library. */
typedef struct pinion_model {
    /* Both are the node's numbers plus one, so that zeroed memory is a model that was never loaded or run. */
    uint32_t graph_;
    uint32_t context_;
} pinion_model;

/** Loads the model that the stage was granted under this name. Returns zero. If the stage was not granted it, logs a line that names it, and
 *  returns the value that `init` must return: then a chain that does not grant the model is refused when it is applied. */
int pinion_model_load(pinion_model *model, const char *name);

/** Runs a model on these inputs, in the model's order. Returns when the run is done. */
enum pinion_nn pinion_model_run(pinion_model *model, const struct pinion_tensor *inputs, size_t count);

/** Copies an output of the model's last run, which has exactly `len` bytes. Returns PINION_NN_ARGUMENT if it is shorter, and
 *  PINION_NN_NO_ROOM if it is longer; `data` is then without meaning. */
enum pinion_nn pinion_model_output(const pinion_model *model, uint32_t index, void *data, size_t len);

#endif
