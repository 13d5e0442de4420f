/* What the fake node's files know of each other. */
#ifndef PINION_FAKE_H
#define PINION_FAKE_H

#include "../src/internal.h"
#include "pinion_test.h"

/* pinion_test.c: the clock between its steps. */
uint64_t fake_exact_clock_ns(void);
/* Ends what a function was doing that has panicked; does nothing if none has. */
void fake_go_on_panicking(void);

/* fake_loop.c: functions that have a `run`. */

/* Runs the function to its first wait. */
void fake_loop_start(void);
/* Has its wait return so many descriptors, or none as its deadline has passed, and runs it to its next wait. How many descriptors are left, if it has
 * returned. */
uint32_t fake_loop_turn(uint32_t fresh);
/* Until when it waits. */
uint64_t fake_loop_deadline_ns(void);
/* Whether it has returned. */
bool fake_loop_is_over(void);
/* On the function's thread: has the test go on, and ends the thread. */
void fake_loop_leave_if_inside(void);

/* fake_state.c: whether a function is being initialised, which may open fields and use none. */
void fake_state_initialising(bool is);

/* fake_metrics.c: fails the test for what a node would refuse. */
void fake_metrics_check(void);

#endif
