/* Declarations that the fake node's files share. */
#ifndef PINION_FAKE_H
#define PINION_FAKE_H

#include "../src/internal.h"
#include "pinion_test.h"

/* pinion_test.c: the clock in nanoseconds, not rounded to its steps. */
uint64_t fake_exact_clock_ns(void);
/* Continues the panic of a function on the test's thread; does nothing if none has panicked. */
void fake_go_on_panicking(void);

/* fake_loop.c: functions with a `run`. */

/* Runs the function to its first wait. */
void fake_loop_start(void);
/* Makes the function's wait return `fresh` descriptors, or none as its deadline has passed, and runs it to its next wait. Returns how
 * many descriptors are left if it has returned. */
uint32_t fake_loop_turn(uint32_t fresh);
/* Returns the deadline of its wait. */
uint64_t fake_loop_deadline_ns(void);
/* Returns whether it has returned. */
bool fake_loop_is_over(void);
/* On the function's thread: lets the test continue, and ends the thread. */
void fake_loop_leave_if_inside(void);

/* fake_state.c: sets whether a function is being initialised, which may open fields but not use them. */
void fake_state_initialising(bool is);
bool fake_state_is_initialising(void);

/* fake_metrics.c: fails the test for declarations that a node would refuse. */
void fake_metrics_check(void);

#endif
