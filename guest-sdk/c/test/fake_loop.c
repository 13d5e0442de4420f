/* Runs functions with a loop of their own: on a second thread, which continues where the function waits.
 *
 *   test's thread    fake_loop_turn  --how many descriptors there are, or none for a deadline-->  pinion_host_wait    function's thread
 *                                    <--its next wait, its return, or its panic----------------
 *
 * One of the two threads always waits for the other, so a test runs the same each time. */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "fake.h"

struct loop {
    sem_t tests_turn;
    sem_t functions_turn;
    bool is_over;
    uint64_t deadline_ns;
    /* The result of the next wait. */
    uint32_t told;
    /* Descriptors left when the function returned. */
    uint32_t left;
};

/* The latest loop. Earlier ones wait until the test's process ends. */
static struct loop *loop;
static _Thread_local bool is_functions;

static void wait_for(sem_t *turn)
{
    while (sem_wait(turn) != 0) {
        /* Interrupted. */
    }
}

static void *run(void *argument)
{
    struct loop *own = argument;
    is_functions = true;
    own->left = pinion_loop();
    own->is_over = true;
    sem_post(&own->tests_turn);
    return NULL;
}

/* Waits until the function waits, returns, or panics. */
static void wait_for_function(void)
{
    wait_for(&loop->tests_turn);
    fake_go_on_panicking();
}

void fake_loop_start(void)
{
    pthread_t thread;
    loop = calloc(1, sizeof *loop);
    PINION_CHECK(loop && sem_init(&loop->tests_turn, 0, 0) == 0 && sem_init(&loop->functions_turn, 0, 0) == 0);
    PINION_CHECK(pthread_create(&thread, NULL, run, loop) == 0 && pthread_detach(thread) == 0);
    wait_for_function();
}

uint32_t pinion_host_wait(uint64_t deadline_ns)
{
    struct loop *own = loop;
    own->deadline_ns = deadline_ns;
    sem_post(&own->tests_turn);
    wait_for(&own->functions_turn);
    return own->told;
}

void fake_loop_leave_if_inside(void)
{
    if (!is_functions)
        return;
    loop->is_over = true;
    sem_post(&loop->tests_turn);
    pthread_exit(NULL);
}

uint32_t fake_loop_turn(uint32_t fresh)
{
    loop->told = fresh;
    sem_post(&loop->functions_turn);
    wait_for_function();
    return loop->left;
}

uint64_t fake_loop_deadline_ns(void)
{
    return loop->deadline_ns;
}

bool fake_loop_is_over(void)
{
    return loop->is_over;
}
