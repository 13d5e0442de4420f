/* Metrics: the declarations, and their layout for the contract.
 *
 *   pinion_declare_counter ...  -->  declared: a record each     while `init` runs
 *   pinion_metrics_header()     -->  entries, header             once, for the node, which then reads values where they lie
 *
 * Records are in static memory, as many as a function may have. Texts are copied, as the caller may have built them on its stack. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static struct pinion_declared declared[PINION_METRICS_MAX];
static size_t declared_count;
/* Set while a function is initialised. The node would not see what is declared at any other time. */
static bool is_open;

void pinion_metrics_open(void)
{
    for (size_t i = 0; i < declared_count; i++)
        free(declared[i].texts);
    declared_count = 0;
    is_open = true;
}

void pinion_metrics_close(void)
{
    is_open = false;
}

size_t pinion_metrics_count(void)
{
    return declared_count;
}

const struct pinion_declared *pinion_metric(size_t number)
{
    return &declared[number];
}

/* Copies a text to `to`; returns its end there. */
static char *copied(char *to, const char *text)
{
    const size_t len = strlen(text);
    memcpy(to, text, len);
    return to + len;
}

static size_t labels_len(const struct pinion_label *labels, const char *changing)
{
    size_t len = changing ? strlen(changing) + 1 : 0;
    for (const struct pinion_label *label = labels; label && label->name; label++)
        len += strlen(label->name) + strlen(label->value) + 2;
    return len > 0 ? len - 1 : 0;
}

/* Writes one line per label, without a line feed after the last. */
static void write_labels(char *to, const struct pinion_label *labels, const char *changing)
{
    for (const struct pinion_label *label = labels; label && label->name; label++) {
        to = copied(to, label->name);
        *to++ = '=';
        for (const char *from = label->value; *from; from++)
            *to++ = (uint8_t)*from < ' ' || *from == 0x7f ? ' ' : *from;
        if (label[1].name || changing)
            *to++ = '\n';
    }
    if (changing)
        copied(to, changing);
}

static void declare(enum pinion_metric_kind kind, void *value, struct pinion_metric_text *text, const char *name, const char *help,
                    const struct pinion_label *labels, const char *changing)
{
    if (!is_open)
        pinion_panic("metric %s: a function declares its metrics when it is initialised", name);
    if (declared_count == PINION_METRICS_MAX)
        pinion_panic("metric %s: a function may have %d metrics, and there are as many before it", name, PINION_METRICS_MAX);
    struct pinion_declared *it = &declared[declared_count];
    *it = (struct pinion_declared){
        .kind = kind,
        .value = value,
        .text = text,
        .name_len = strlen(name),
        .help_len = strlen(help),
        .labels_len = labels_len(labels, changing),
    };
    it->texts = malloc(it->name_len + it->help_len + it->labels_len + 1);
    if (!it->texts)
        pinion_panic("metric %s: there is no memory for its labels", name);
    it->name = it->texts;
    it->help = copied(it->texts, name);
    char *lines = copied(it->texts + it->name_len, help);
    it->labels = lines;
    write_labels(lines, labels, changing);
    declared_count++;
}

void pinion_declare_counter(pinion_counter *counter, const char *name, const char *help, const struct pinion_label *labels)
{
    counter->value_ = 0;
    declare(PINION_METRIC_KIND_COUNTER, &counter->value_, NULL, name, help, labels, NULL);
}

void pinion_declare_gauge(pinion_gauge *gauge, const char *name, const char *help, const struct pinion_label *labels)
{
    gauge->value_ = 0;
    declare(PINION_METRIC_KIND_GAUGE, &gauge->value_, NULL, name, help, labels, NULL);
}

void pinion_declare_named_gauge(pinion_named_gauge *gauge, const char *name, const char *help, const struct pinion_label *labels,
                                const char *label)
{
    *gauge = (pinion_named_gauge){.value_ = 0};
    declare(PINION_METRIC_KIND_GAUGE, &gauge->value_, &gauge->text_, name, help, labels, label);
}

/* The node may read at any time: it must see the writes before this barrier before those after it. */
static void in_order(void)
{
    __asm__ volatile("" ::: "memory");
}

void pinion_named_gauge_set(pinion_named_gauge *gauge, const char *label, int64_t value)
{
    const size_t wanted = strlen(label), most = PINION_METRIC_TEXT_BYTES_MAX;
    const size_t len = wanted > most ? pinion_whole_characters(label, most) : wanted;
    /* The node sees the old label, an empty one, or the new one. */
    pinion_named_gauge_clear(gauge);
    memcpy(gauge->text_.bytes, label, len);
    gauge->value_ = value;
    in_order();
    gauge->text_.len = (uint32_t)len;
}

void pinion_named_gauge_clear(pinion_named_gauge *gauge)
{
    gauge->text_.len = 0;
    in_order();
}

#if defined(__wasm__)

static uint32_t address(const void *place)
{
    return (uint32_t)(uintptr_t)place;
}

const struct pinion_metrics_header *pinion_metrics_header(void)
{
    static struct pinion_metric_entry entries[PINION_METRICS_MAX];
    static struct pinion_metrics_header header;
    for (size_t i = 0; i < declared_count; i++) {
        const struct pinion_declared *it = &declared[i];
        entries[i] = (struct pinion_metric_entry){
            .kind = it->kind,
            .value = address(it->value),
            .name = address(it->name),
            .name_len = (uint32_t)it->name_len,
            .help = address(it->help),
            .help_len = (uint32_t)it->help_len,
            .labels = address(it->labels),
            .labels_len = (uint32_t)it->labels_len,
            .text = address(it->text),
        };
    }
    header = (struct pinion_metrics_header){
        .magic = PINION_METRICS_MAGIC,
        .count = (uint32_t)declared_count,
        .entries = address(entries),
    };
    return &header;
}

#endif
