/* A firewall for one client: what its policy allows is sent on along the chain, all else is dropped.
 *
 *   configuration --policy.c--> policy: a list of rules for IPv4, one for IPv6     once, when the chain is made
 *   frame --the SDK--> headers --policy_allows--> send or drop                     for each packet
 *
 * It keeps no state between packets but a count of those denied, so it costs the same whatever comes. */
#include <pinion.h>

#include "policy.h"

/* Time between two log lines about denied packets. */
#define REPORT_INTERVAL_NS 10000000000u

static struct policy *policy;
static uint64_t denied;
static uint64_t reported_ns = PINION_NEVER;

static int prepare(const uint8_t *config, size_t len)
{
    policy = policy_read((const char *)config, len);
    return policy ? PINION_INIT_STATUS_READY : PINION_INIT_STATUS_CONFIG_REFUSED;
}

/* Says so now and then: a client that floods what is denied must not fill the log. */
static void report(void)
{
    const uint64_t now_ns = pinion_now_ns();
    if (reported_ns != PINION_NEVER && now_ns - reported_ns < REPORT_INTERVAL_NS)
        return;
    reported_ns = now_ns;
    pinion_log(PINION_INFO, "%llu packets denied so far", (unsigned long long)denied);
}

static void handle(pinion_packet *const *packets, size_t count)
{
    const uint64_t denied_before = denied;
    for (size_t i = 0; i < count; i++) {
        struct pinion_headers headers;
        if (pinion_headers(packets[i], &headers) == PINION_READABLE && policy_allows(policy, &headers)) {
            pinion_send(packets[i]);
        } else {
            denied++;
            pinion_drop(packets[i]);
        }
    }
    if (denied > denied_before)
        report();
}

PINION_FUNCTION(.init = prepare, .batch = handle);
