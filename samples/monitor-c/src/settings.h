/* What the function is configured with: words and numbers, each at most once and in any order, like `every 10s top 5 flows 8192`. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most flows that a report may list; as many lines a node takes at once. */
#define TOP_MAX 32

struct settings {
    /* Seconds between two reports. */
    uint32_t every_s;
    /* Flows that a report lists. */
    uint32_t top;
    /* Flows that are remembered at once. */
    uint32_t flows;
};

/* Reads them; what is not said stays as it is by default. False if it is refused, which says why. */
bool settings_read(struct settings *settings, const char *text, size_t len);

#endif
