/* The fake node's metrics: refuses what a node would refuse, and reads the values. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* The suffix of counters' names where they are shown. */
static const char total[] = "_total";

/* A slice of a text. */
struct part {
    const char *at;
    size_t len;
};

/* A metric's labels, read line by line. The value of a label that changes is its current one. */
struct labels {
    struct part names[PINION_METRIC_LABELS_MAX];
    struct part values[PINION_METRIC_LABELS_MAX];
    size_t count;
};

static void refuse(const struct pinion_declared *metric, const char *what)
{
    fprintf(stderr, "a node would refuse this function: metric %.*s: %s\n", (int)metric->name_len, metric->name, what);
    exit(1);
}

static bool is(struct part part, const char *text)
{
    return part.len == strlen(text) && memcmp(part.at, text, part.len) == 0;
}

static bool is_same(struct part one, struct part other)
{
    return one.len == other.len && memcmp(one.at, other.at, one.len) == 0;
}

static struct labels labels_of(const struct pinion_declared *metric)
{
    struct labels labels = {.count = 0};
    struct part rest = {metric->labels, metric->labels_len};
    while (rest.len > 0) {
        const char *end = memchr(rest.at, '\n', rest.len);
        const struct part line = {rest.at, end ? (size_t)(end - rest.at) : rest.len};
        const size_t taken = line.len + (end != NULL);
        rest = (struct part){rest.at + taken, rest.len - taken};
        if (labels.count == PINION_METRIC_LABELS_MAX)
            refuse(metric, "it has too many labels");
        const char *equals = memchr(line.at, '=', line.len);
        if (!equals && !metric->text)
            refuse(metric, "a label's name has no newline in it");
        const size_t name_len = equals ? (size_t)(equals - line.at) : line.len;
        labels.names[labels.count] = (struct part){line.at, name_len};
        if (equals)
            labels.values[labels.count] = (struct part){equals + 1, line.len - name_len - 1};
        else
            labels.values[labels.count] = (struct part){(const char *)metric->text->bytes, metric->text->len};
        labels.count++;
    }
    return labels;
}

static bool is_word(struct part word, const char *more)
{
    for (size_t i = 0; i < word.len; i++)
        if (!isalpha((uint8_t)word.at[i]) && word.at[i] != '_' && !strchr(more, word.at[i]) && (i == 0 || !isdigit((uint8_t)word.at[i])))
            return false;
    return word.len > 0 && word.len <= PINION_METRIC_NAME_BYTES_MAX;
}

static void check_labels(const struct pinion_declared *metric)
{
    static const char *const reserved[] = {PINION_METRIC_LABELS_RESERVED};
    const struct labels labels = labels_of(metric);
    for (size_t i = 0; i < labels.count; i++) {
        const struct part name = labels.names[i];
        if (!is_word(name, "") || (name.len >= 2 && memcmp(name.at, "__", 2) == 0))
            refuse(metric, "a label's name must consist of letters, digits and _, and must not begin with __");
        for (size_t j = 0; j < sizeof reserved / sizeof *reserved; j++)
            if (is(name, reserved[j]))
                refuse(metric, "it has a label that is reserved for the node");
        for (size_t j = 0; j < i; j++)
            if (is_same(labels.names[j], name))
                refuse(metric, "it has a label twice");
    }
}

static void check(const struct pinion_declared *metric)
{
    const struct part name = {metric->name, metric->name_len};
    if (!is_word(name, ":"))
        refuse(metric, "a name must consist of letters, digits, _ and :");
    const size_t end = sizeof total - 1;
    if (metric->kind == PINION_METRIC_KIND_GAUGE && name.len >= end && memcmp(name.at + name.len - end, total, end) == 0)
        refuse(metric, "a gauge's name must not end in _total");
    if (metric->help_len > PINION_METRIC_HELP_BYTES_MAX)
        refuse(metric, "its help is too long");
    for (size_t i = 0; i < metric->help_len; i++)
        if (iscntrl((uint8_t)metric->help[i]))
            refuse(metric, "its help must be one line");
    if (metric->labels_len > PINION_METRIC_LABELS_BYTES_MAX)
        refuse(metric, "its labels are too long");
    check_labels(metric);
}

/* Returns whether one has each label of the other. */
static bool has_all(const struct labels *one, const struct labels *other)
{
    for (size_t i = 0; i < other->count; i++) {
        bool found = false;
        for (size_t j = 0; j < one->count; j++)
            found |= is_same(one->names[j], other->names[i]) && is_same(one->values[j], other->values[i]);
        if (!found)
            return false;
    }
    return true;
}

/* Returns the name without the suffix that a node appends to a counter's. */
static struct part bare(struct part name, int kind)
{
    const size_t end = sizeof total - 1;
    if (kind == PINION_METRIC_KIND_COUNTER && name.len > end && memcmp(name.at + name.len - end, total, end) == 0)
        name.len -= end;
    return name;
}

static struct part bare_name(const struct pinion_declared *metric)
{
    return bare((struct part){metric->name, metric->name_len}, metric->kind);
}

static bool is_like(const struct pinion_declared *one, const struct pinion_declared *other)
{
    const struct part name = bare_name(one), other_name = bare_name(other);
    const struct labels labels = labels_of(one), others = labels_of(other);
    return one->kind == other->kind && is_same(name, other_name) && labels.count == others.count && has_all(&labels, &others);
}

void fake_metrics_check(void)
{
    size_t texts = 0;
    for (size_t i = 0; i < pinion_metrics_count(); i++) {
        const struct pinion_declared *metric = pinion_metric(i);
        check(metric);
        texts += metric->text != NULL;
        if (texts > PINION_METRIC_TEXTS_MAX)
            refuse(metric, "there are too many with a label that changes");
        for (size_t j = 0; j < i; j++)
            if (is_like(metric, pinion_metric(j)))
                refuse(metric, "there is another of the same name and labels");
    }
}

/* --- Called by tests. ---------------------------------------------------------------------------------------------------------------- */

/* Returns the metric that is shown with this name and these labels, in any order; NULL if there is none. */
static const struct pinion_declared *find(const char *name, const struct pinion_label *wanted)
{
    struct labels labels = {.count = 0};
    for (const struct pinion_label *label = wanted; label && label->name; label++, labels.count++) {
        PINION_CHECK(labels.count < PINION_METRIC_LABELS_MAX);
        labels.names[labels.count] = (struct part){label->name, strlen(label->name)};
        labels.values[labels.count] = (struct part){label->value, strlen(label->value)};
    }
    for (size_t i = 0; i < pinion_metrics_count(); i++) {
        const struct pinion_declared *metric = pinion_metric(i);
        const struct labels its = labels_of(metric);
        const bool is_shown = !metric->text || metric->text->len > 0;
        const bool is_it = is_same(bare_name(metric), bare((struct part){name, strlen(name)}, metric->kind));
        if (is_shown && is_it && its.count == labels.count && has_all(&its, &labels))
            return metric;
    }
    return NULL;
}

bool pinion_test_has_metric(const char *name, const struct pinion_label *labels)
{
    return find(name, labels) != NULL;
}

int64_t pinion_test_metric(const char *name, const struct pinion_label *labels)
{
    const struct pinion_declared *metric = find(name, labels);
    if (!metric)
        pinion_test_fail(__FILE__, __LINE__, name);
    int64_t value;
    memcpy(&value, metric->value, sizeof value);
    return value;
}
