/* A function that sets callbacks of two forms. */
#include <string.h>

#include <pinion_test.h>

static void run(void)
{
    pinion_packet *packets[PINION_BATCH_PACKETS_MAX];
    pinion_wait(packets);
}

static void expire(void)
{
}

PINION_FUNCTION(.run = run, .expire = expire);

static void a_function_with_run_and_expire_is_refused(void)
{
    PINION_CHECK(!pinion_test_prepare(""));
    PINION_CHECK(strcmp(pinion_test_last_log(), "a function with .run waits by pinion_wait_until, and its .expire would never be called") == 0);
}

PINION_TESTS(a_function_with_run_and_expire_is_refused)
