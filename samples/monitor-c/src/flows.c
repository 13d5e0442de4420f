/* A hash table with chained buckets, whose flows are also linked in the order in which they were last seen. */
#include <stdlib.h>
#include <string.h>

#include "flows.h"

#define NONE UINT32_MAX

/* A key as 32-bit halves of words; the last word is padded with zeroes. */
#define HALVES ((sizeof(struct pinion_flow_key) + 3) / 4)
_Static_assert(HALVES % 2 == 0, "halves are multiplied in pairs");

static struct flow *flows;
static uint32_t *buckets, room, count, bucket_mask;
static uint32_t oldest = NONE, newest = NONE;
static uint64_t interval, forgotten;
static uint64_t hash_key[HALVES + 2];

bool flows_make(uint32_t wanted)
{
    room = wanted;
    bucket_mask = 1;
    while (bucket_mask < wanted)
        bucket_mask *= 2;
    flows = calloc(room, sizeof *flows);
    buckets = malloc(bucket_mask * sizeof *buckets);
    if (!flows || !buckets)
        return false;
    memset(buckets, 0xff, bucket_mask * sizeof *buckets);
    bucket_mask--;
    return true;
}

void flows_rekey(void)
{
    pinion_random(hash_key, sizeof hash_key);
    hash_key[HALVES + 1] |= 1;
}

/* Adds a random number to each half, multiplies the results in pairs, and sums them up (MULTILINEAR-HM of Lemire and
 * Kaser, "Strongly universal string hashing is fast"). A shift and another multiplication spread the sums of similar
 * flows. */
static uint32_t bucket_of(const struct pinion_flow_key *key)
{
    uint32_t halves[HALVES] = {0};
    memcpy(halves, key, sizeof *key);
    uint64_t sum = hash_key[HALVES];
    for (size_t i = 0; i < HALVES; i += 2)
        sum += (hash_key[i] + halves[i]) * (hash_key[i + 1] + halves[i + 1]);
    return (uint32_t)(((sum ^ (sum >> 32)) * hash_key[HALVES + 1]) >> 32) & bucket_mask;
}

static void take_from_order(const struct flow *flow)
{
    *(flow->older == NONE ? &oldest : &flows[flow->older].newer) = flow->newer;
    *(flow->newer == NONE ? &newest : &flows[flow->newer].older) = flow->older;
}

static void put_last(struct flow *flow)
{
    const uint32_t place = (uint32_t)(flow - flows);
    flow->older = newest;
    flow->newer = NONE;
    *(newest == NONE ? &oldest : &flows[newest].newer) = place;
    newest = place;
}

static struct flow *find(const struct pinion_flow_key *key, uint32_t bucket)
{
    for (uint32_t place = buckets[bucket]; place != NONE; place = flows[place].next)
        if (memcmp(&flows[place].key, key, sizeof *key) == 0)
            return &flows[place];
    return NULL;
}

/* Forgets the flow unseen for longest; returns its entry. */
static struct flow *forget_one(void)
{
    struct flow *flow = &flows[oldest];
    uint32_t *link = &buckets[bucket_of(&flow->key)];
    while (*link != oldest)
        link = &flows[*link].next;
    *link = flow->next;
    take_from_order(flow);
    forgotten++;
    return flow;
}

static struct flow *begin(const struct pinion_flow_key *key, uint32_t bucket, uint64_t now_ns)
{
    struct flow *flow = count == room ? forget_one() : &flows[count++];
    *flow = (struct flow){.key = *key, .interval = interval, .first_ns = now_ns, .next = buckets[bucket]};
    buckets[bucket] = (uint32_t)(flow - flows);
    put_last(flow);
    return flow;
}

static void add(struct amount *amount, size_t bytes)
{
    amount->packets++;
    amount->bytes += bytes;
}

void flows_see(const struct pinion_flow_key *key, size_t bytes, uint64_t now_ns)
{
    const uint32_t bucket = bucket_of(key);
    struct flow *flow = find(key, bucket);
    if (!flow)
        flow = begin(key, bucket, now_ns);
    if (flow->interval != interval) {
        flow->interval = interval;
        flow->recent = (struct amount){0, 0};
    }
    add(&flow->total, bytes);
    add(&flow->recent, bytes);
    flow->last_ns = now_ns;
    take_from_order(flow);
    put_last(flow);
}

/* Returns whether one flow has fewer bytes than the other in the interval. */
static bool is_less(const struct amount *one, const struct amount *other)
{
    return one->bytes != other->bytes ? one->bytes < other->bytes : one->packets < other->packets;
}

size_t flows_top(const struct flow **top, size_t wanted)
{
    size_t there = 0;
    for (uint32_t place = oldest; place != NONE; place = flows[place].newer) {
        const struct flow *const flow = &flows[place];
        if (flow->interval != interval || (there == wanted && !is_less(&top[there - 1]->recent, &flow->recent)))
            continue;
        size_t at = there < wanted ? there++ : wanted - 1;
        for (; at > 0 && is_less(&top[at - 1]->recent, &flow->recent); at--)
            top[at] = top[at - 1];
        top[at] = flow;
    }
    interval++;
    return there;
}

uint32_t flows_count(void)
{
    return count;
}

uint64_t flows_forgotten(void)
{
    return forgotten;
}
