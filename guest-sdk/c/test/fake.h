/* What the fake node's files know of each other. */
#ifndef PINION_FAKE_H
#define PINION_FAKE_H

#include "../src/internal.h"
#include "pinion_test.h"

/* pinion_test.c: the clock between its steps. */
uint64_t fake_exact_clock_ns(void);

/* fake_state.c: whether a function is being initialised, which may open fields and use none. */
void fake_state_initialising(bool is);

/* fake_metrics.c: fails the test for what a node would refuse. */
void fake_metrics_check(void);

#endif
