/* Traffic of each flow: in total, and since the last report. Allocates all memory at the start, and takes constant time
 * per packet. */
#ifndef FLOWS_H
#define FLOWS_H

#include <pinion.h>

/* Packets, and the bytes of their frames. */
struct amount {
    uint64_t packets;
    uint64_t bytes;
};

/* A flow and its counts. */
struct flow {
    struct pinion_flow_key key;
    /* Since it was first seen. */
    struct amount total;
    /* In the last interval in which the flow was seen, which has this number. */
    struct amount recent;
    uint64_t interval;
    /* When its first packet came, and its last one. */
    uint64_t first_ns;
    uint64_t last_ns;
    /* Links of the table: the next flow in the same bucket, and the flows seen before and after this one. */
    uint32_t next;
    uint32_t older;
    uint32_t newer;
};

/* Allocates room for that many flows. Returns false if there is no memory for them. */
bool flows_make(uint32_t flows);
/* Draws the hash key, so that chosen addresses cannot make many flows collide in one bucket. */
void flows_rekey(void);
/* Counts a packet of the flow. If the table is full, the flow unseen for longest is forgotten. */
void flows_see(const struct pinion_flow_key *key, size_t bytes, uint64_t now_ns);
/* Ends the interval: writes the flows with the most bytes in it, at most `count`, the greatest first, and returns their
 * number. Looks at each flow once. */
size_t flows_top(const struct flow **top, size_t count);
/* Return how many flows are remembered, and how many were forgotten. */
uint32_t flows_count(void);
uint64_t flows_forgotten(void);

#endif
