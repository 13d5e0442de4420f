/* The configuration: words and numbers, each at most once and in any order, like `every 10s top 5 flows 8192`. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most flows that a report may list; a node takes as many lines at once. */
#define TOP_MAX 32

struct settings {
    /* Seconds between two reports. */
    uint32_t every_s;
    /* Flows that a report lists. */
    uint32_t top;
    /* Most flows that are remembered at once. */
    uint32_t flows;
};

/* Parses the text; settings that it does not have keep their defaults. Returns false if the text is refused, and says
 * why in the log. */
bool settings_read(struct settings *settings, const char *text, size_t len);

#endif
