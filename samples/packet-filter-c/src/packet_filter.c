/* A stateless firewall: packets that its policy allows are forwarded along the chain, all others are dropped.
 *
 *   configuration --policy.c--> policy: a list of rules for IPv4, one for IPv6     once, when the chain is made
 *   frame --the SDK--> headers --policy_allows--> send or drop                     for each packet
 *
 * Its only state is its counters, so its costs per packet are bounded. */
#include <pinion.h>

#include "policy.h"

/* Time between two log lines about denied packets. */
#define REPORT_INTERVAL_NS 10000000000u

static struct policy *policy;
/* Packets by verdict and reason. */
static pinion_counter allowed, denied, unreadable;
static uint64_t reported_ns = PINION_NEVER;

static void declare_metrics(void)
{
    pinion_declare_counter(&allowed, "packet_filter_packets_allowed", "Packets that were sent on.", PINION_NO_LABELS);
    const char *const help = "Packets that were dropped, by reason.";
    pinion_declare_counter(&denied, "packet_filter_packets_denied", help, PINION_LABELS({"reason", "policy"}));
    pinion_declare_counter(&unreadable, "packet_filter_packets_denied", help, PINION_LABELS({"reason", "unreadable"}));
}

static int prepare(const uint8_t *config, size_t len)
{
    declare_metrics();
    policy = policy_read((const char *)config, len);
    return policy ? PINION_INIT_STATUS_READY : PINION_INIT_STATUS_CONFIG_REFUSED;
}

static uint64_t denied_count(void)
{
    return pinion_counter_value(&denied) + pinion_counter_value(&unreadable);
}

/* Logs the count, at most every ten seconds: a flood of denied packets must not fill the log. */
static void report(void)
{
    const uint64_t now_ns = pinion_now_ns();
    if (reported_ns != PINION_NEVER && now_ns - reported_ns < REPORT_INTERVAL_NS)
        return;
    reported_ns = now_ns;
    pinion_log(PINION_INFO, "%llu packets denied so far", (unsigned long long)denied_count());
}

static void judge(pinion_packet *packet)
{
    struct pinion_headers headers;
    const bool is_readable = pinion_headers(packet, &headers) == PINION_READABLE;
    if (is_readable && policy_allows(policy, &headers)) {
        pinion_counter_add(&allowed, 1);
        pinion_send(packet);
    } else {
        pinion_counter_add(is_readable ? &denied : &unreadable, 1);
        pinion_drop(packet);
    }
}

static void handle(pinion_packet *const *packets, size_t count)
{
    const uint64_t denied_before = denied_count();
    for (size_t i = 0; i < count; i++)
        judge(packets[i]);
    if (denied_count() > denied_before)
        report();
}

PINION_FUNCTION(.init = prepare, .batch = handle);
