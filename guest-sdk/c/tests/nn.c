/* Models as a function uses them, on the fake node. */
#include <string.h>

#include <pinion_test.h>

static pinion_model model;
static enum pinion_nn too_early, done;
static float sum;

static enum pinion_nn run(const void *bytes, size_t len)
{
    const uint32_t shape[] = {1, (uint32_t)len};
    const struct pinion_tensor input = {PINION_U8, shape, 2, bytes, len};
    return pinion_model_run(&model, &input, 1);
}

static int prepare(const uint8_t *config, size_t len)
{
    (void)config, (void)len;
    const int refused = pinion_model_load(&model, "sum");
    if (!refused)
        too_early = run("", 0);
    return refused;
}

/* Sends packets of which the model has a sum. */
static void handle(pinion_packet *packet)
{
    done = run(pinion_data(packet), pinion_len(packet));
    if (done == PINION_NN_DONE && pinion_model_output(&model, 0, &sum, sizeof sum) == PINION_NN_DONE)
        pinion_send(packet);
}

PINION_FUNCTION(.init = prepare, .packet = handle);

static bool add(const struct pinion_test_bytes *inputs, void *output, size_t capacity, size_t *len)
{
    float total = 0;
    for (size_t at = 0; at < inputs[0].len; at++)
        total += ((const uint8_t *)inputs[0].data)[at];
    PINION_CHECK(capacity >= sizeof total);
    memcpy(output, &total, *len = sizeof total);
    return true;
}

static bool fail(const struct pinion_test_bytes *inputs, void *output, size_t capacity, size_t *len)
{
    (void)inputs, (void)output, (void)capacity, (void)len;
    return false;
}

static bool is_sent(const char *packet)
{
    return pinion_test_deliver_one(packet, strlen(packet)).outcome == PINION_TEST_SENT;
}

static void a_model_that_is_not_granted_is_refused_by_name(void)
{
    PINION_CHECK(!pinion_test_prepare(""));
    PINION_CHECK(strstr(pinion_test_last_log(), "model \"sum\": the stage is granted no model of this name"));
    PINION_CHECK(run("", 0) == PINION_NN_NO_MODEL && pinion_model_output(&model, 0, &sum, sizeof sum) == PINION_NN_ARGUMENT);
}

static void nothing_is_run_while_the_function_is_initialised(void)
{
    pinion_test_grant_model((struct pinion_test_model){.name = "sum", .run = add});
    PINION_CHECK(pinion_test_prepare("") && too_early == PINION_NN_BUSY);
    PINION_CHECK(is_sent("ab"));
}

static void a_run_gives_the_models_output(void)
{
    pinion_test_grant_model((struct pinion_test_model){.name = "sum", .run = add});
    PINION_CHECK(pinion_test_prepare(""));
    PINION_CHECK(is_sent("ab") && sum == 'a' + 'b');
    PINION_CHECK(is_sent("c") && sum == 'c');
    uint8_t small[2];
    PINION_CHECK(pinion_model_output(&model, 0, small, sizeof small) == PINION_NN_NO_ROOM);
    uint8_t large[8];
    PINION_CHECK(pinion_model_output(&model, 0, large, sizeof large) == PINION_NN_ARGUMENT);
    PINION_CHECK(pinion_model_output(&model, 1, large, sizeof large) == PINION_NN_ARGUMENT);
}

static void a_run_that_fails_is_told_and_has_no_output(void)
{
    pinion_test_grant_model((struct pinion_test_model){.name = "sum", .run = fail});
    PINION_CHECK(pinion_test_prepare(""));
    PINION_CHECK(!is_sent("ab") && done == PINION_NN_FAILED);
    PINION_CHECK(pinion_model_output(&model, 0, &sum, sizeof sum) == PINION_NN_ARGUMENT);
}

PINION_TESTS(a_model_that_is_not_granted_is_refused_by_name, nothing_is_run_while_the_function_is_initialised, a_run_gives_the_models_output,
             a_run_that_fails_is_told_and_has_no_output)
