/* Metrics: counters and gauges that the node shows. `pinion metrics` prints them for Prometheus, with the tenant, chain, stage and module of
 * each.
 *
 * They are declared in `init`, once for all instances, and cost no call of the node's: to count is to write to a word of the function's
 * own memory, which the node looks at ten times a second, and when the instance ends. Counters of all instances that there ever were are
 * added up, gauges of all that there are.
 *
 *     static pinion_counter passed, dropped;
 *     static pinion_gauge longest;
 *
 *     static int prepare(const uint8_t *config, size_t len)
 *     {
 *         pinion_declare_counter(&passed, "packets", "Packets that came.", PINION_LABELS({"verdict", "passed"}));
 *         pinion_declare_counter(&dropped, "packets", "Packets that came.", PINION_LABELS({"verdict", "dropped"}));
 *         pinion_declare_gauge(&longest, "longest_bytes", "The longest packet so far.", PINION_NO_LABELS);
 *         return 0;
 *     }
 *
 * and then, packet by packet, `pinion_counter_add(&passed, 1)`. On a node that is, of a chain `web` of a tenant `demo`:
 *
 *     # HELP pinion_function_packets_total Packets that came.
 *     # TYPE pinion_function_packets_total counter
 *     pinion_function_packets_total{tenant="demo",chain="web",stage="0",module="count",verdict="passed"} 2
 *
 * Names and labels follow Prometheus' rules, a gauge's name does not end in `_total`, and the labels `tenant`, `chain`, `stage` and `module` are
 * the node's own. A function may have PINION_METRICS_MAX metrics. What breaks these rules is refused when the module is built into a
 * template, by name; in a test, pinion_test_prepare fails.
 *
 * A metric lies in memory of the function's that stays where it is, and is written to by the calls below only; names, helps and labels are
 * copied when it is declared. */
#ifndef PINION_METRICS_H
#define PINION_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include <pinion/abi.h>

/** A label, and its value. What would end a line is no part of a value: there is a space in its place. */
struct pinion_label {
    const char *name;
    const char *value;
};

/** Labels, as in `PINION_LABELS({"protocol", "tcp"}, {"verdict", "passed"})`. */
#define PINION_LABELS(...) ((const struct pinion_label[]){__VA_ARGS__, {NULL, NULL}})
#define PINION_NO_LABELS ((const struct pinion_label *)NULL)

/** A number that only grows. */
typedef struct pinion_counter {
    uint64_t value_;
} pinion_counter;

/** A number that goes up and down. */
typedef struct pinion_gauge {
    int64_t value_;
} pinion_gauge;

/** A gauge of which one label changes: whom a number is about that is there for a while, such as the first of those who send most.
 *
 *  Each label that it ever has is a series of its own to Prometheus: so it is for what lasts for minutes, not for each client that comes.
 *  A function may have PINION_METRIC_TEXTS_MAX of them. To be of use in sums, it is best told apart by a rank as well. */
typedef struct pinion_named_gauge {
    int64_t value_;
    struct pinion_metric_text text_;
} pinion_named_gauge;

/* --- In `init`; anywhere else each of these ends the instance. ----------------------------------------------------------------------- */

/** Declares a counter, which is 0, with labels of its own if there are others of its name. Its name needs no `_total` at the end: series have
 *  that anyway. */
void pinion_declare_counter(pinion_counter *counter, const char *name, const char *help, const struct pinion_label *labels);
/** Declares a gauge, which is 0. */
void pinion_declare_gauge(pinion_gauge *gauge, const char *name, const char *help, const struct pinion_label *labels);
/** Declares a gauge with these labels, and one called `label` that changes. Until it is set it is not shown. */
void pinion_declare_named_gauge(pinion_named_gauge *gauge, const char *name, const char *help, const struct pinion_label *labels,
                                const char *label);

/* --- Anywhere. ----------------------------------------------------------------------------------------------------------------------- */

/** Counts so many more. */
static inline void pinion_counter_add(pinion_counter *counter, uint64_t count)
{
    counter->value_ += count;
}

/** What this instance has counted. */
static inline uint64_t pinion_counter_value(const pinion_counter *counter)
{
    return counter->value_;
}

/** Sets a gauge. */
static inline void pinion_gauge_set(pinion_gauge *gauge, int64_t value)
{
    gauge->value_ = value;
}

/** Moves a gauge up, or down; it wraps around at its ends. */
static inline void pinion_gauge_add(pinion_gauge *gauge, int64_t difference)
{
    gauge->value_ = (int64_t)((uint64_t)gauge->value_ + (uint64_t)difference);
}

/** What a gauge is in this instance. */
static inline int64_t pinion_gauge_value(const pinion_gauge *gauge)
{
    return gauge->value_;
}

/** Sets label and value. Of the label the first PINION_METRIC_TEXT_BYTES_MAX bytes are kept; an empty one is as good as
 *  pinion_named_gauge_clear. */
void pinion_named_gauge_set(pinion_named_gauge *gauge, const char *label, int64_t value);
/** Has it not be shown until it is set. */
void pinion_named_gauge_clear(pinion_named_gauge *gauge);

#endif
