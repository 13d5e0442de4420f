/* What each flow has taken: in all, and since the last report. Takes all memory when it is made, and constant time for a packet. */
#ifndef FLOWS_H
#define FLOWS_H

#include <pinion.h>

/* Packets, and bytes of their frames. */
struct amount {
    uint64_t packets;
    uint64_t bytes;
};

/* A flow, and what is known of it. */
struct flow {
    struct pinion_flow_key key;
    /* Since it was first seen. */
    struct amount total;
    /* In the interval of that number, which is the last in which it was seen. */
    struct amount recent;
    uint64_t interval;
    /* When its first packet came, and its last one. */
    uint64_t first_ns;
    uint64_t last_ns;
    /* Of the table: the next one in the same bucket, and those seen before and after it. */
    uint32_t next;
    uint32_t older;
    uint32_t newer;
};

/* Makes room for so many. False if there is no memory for them. */
bool flows_make(uint32_t flows);
/* Draws the key by which flows are found: nobody who chooses addresses can have many of them meet in one bucket. */
void flows_rekey(void);
/* Counts a packet of the flow. If there is no room for it, the one unseen for longest is forgotten. */
void flows_see(const struct pinion_flow_key *key, size_t bytes, uint64_t now_ns);
/* Ends the interval: writes those that have taken most bytes in it, at most `count`, with the greatest first; how many there are. Looks at
 * each flow once. */
size_t flows_top(const struct flow **top, size_t count);
/* How many are remembered, and how many were forgotten. */
uint32_t flows_count(void);
uint64_t flows_forgotten(void);

#endif
