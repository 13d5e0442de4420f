/* Metrics: counters and gauges that the node shows. `pinion metrics` prints them for Prometheus, with the tenant, chain, stage and module of
 * each.
 *
 * They are declared in `init`, once for all instances. Counting costs no call of the node: it writes to a word of the function's own
 * memory, which the node reads ten times a second, and when the instance ends. The node adds up a counter over all instances that have ever
 * existed, and a gauge over those that exist.
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
 * and then, packet by packet, `pinion_counter_add(&passed, 1)`. A node shows, for a chain `web` of a tenant `demo`:
 *
 *     # HELP pinion_function_packets_total Packets that came.
 *     # TYPE pinion_function_packets_total counter
 *     pinion_function_packets_total{tenant="demo",chain="web",stage="0",module="count",verdict="passed"} 2
 *
 * Names and labels follow Prometheus' rules. A gauge's name does not end in `_total`. The labels `tenant`, `chain`, `stage` and `module`
 * are reserved for the node. A function may have PINION_METRICS_MAX metrics. If a metric breaks these rules, the node refuses the module
 * when it is built into a template, and names the metric; in a test, pinion_test_prepare fails.
 *
 * A metric must stay at the same address of the function's memory, and only the calls below may write to it. Names, help texts and
 * labels are copied when the metric is declared. */
#ifndef PINION_METRICS_H
#define PINION_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include <pinion/abi.h>

/** A label and its value. A control character in the value, such as a line feed, is replaced by a space. */
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

/** A gauge with one label that changes: for example, the name of the client that a number is about, such as one of those that send most.
 *
 *  Each value that the label ever has is a series of its own to Prometheus. So use it for what lasts for minutes, not for each new
 *  client. A function may have PINION_METRIC_TEXTS_MAX of these gauges. To make sums meaningful, give each a further label for its rank. */
typedef struct pinion_named_gauge {
    int64_t value_;
    struct pinion_metric_text text_;
} pinion_named_gauge;

/* --- In `init`; anywhere else each of these ends the instance. ----------------------------------------------------------------------- */

/** Declares a counter, which starts at 0. If other counters have the same name, its labels must differ from theirs. The name needs no
 *  `_total` at its end: the node appends that to the series. */
void pinion_declare_counter(pinion_counter *counter, const char *name, const char *help, const struct pinion_label *labels);
/** Declares a gauge, which starts at 0. */
void pinion_declare_gauge(pinion_gauge *gauge, const char *name, const char *help, const struct pinion_label *labels);
/** Declares a gauge with these labels and one more, called `label`, that changes. The gauge is not shown until it is set. */
void pinion_declare_named_gauge(pinion_named_gauge *gauge, const char *name, const char *help, const struct pinion_label *labels,
                                const char *label);

/* --- Anywhere. ----------------------------------------------------------------------------------------------------------------------- */

/** Adds `count` to a counter. */
static inline void pinion_counter_add(pinion_counter *counter, uint64_t count)
{
    counter->value_ += count;
}

/** Returns this instance's count. */
static inline uint64_t pinion_counter_value(const pinion_counter *counter)
{
    return counter->value_;
}

/** Sets a gauge. */
static inline void pinion_gauge_set(pinion_gauge *gauge, int64_t value)
{
    gauge->value_ = value;
}

/** Adds to a gauge, or subtracts from it; the gauge wraps around at its ends. */
static inline void pinion_gauge_add(pinion_gauge *gauge, int64_t difference)
{
    gauge->value_ = (int64_t)((uint64_t)gauge->value_ + (uint64_t)difference);
}

/** Returns a gauge's value in this instance. */
static inline int64_t pinion_gauge_value(const pinion_gauge *gauge)
{
    return gauge->value_;
}

/** Sets label and value. Keeps the first PINION_METRIC_TEXT_BYTES_MAX bytes of the label. An empty label has the effect of
 *  pinion_named_gauge_clear. */
void pinion_named_gauge_set(pinion_named_gauge *gauge, const char *label, int64_t value);
/** Hides the gauge until it is set again. */
void pinion_named_gauge_clear(pinion_named_gauge *gauge);

#endif
