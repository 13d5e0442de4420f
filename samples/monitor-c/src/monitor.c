/* A flow monitor: counts the traffic of each flow, logs the top flows periodically, and forwards everything unchanged.
 *
 *   configuration --settings.c--> settings                          once, when the chain is made
 *   frame --the SDK--> headers --> key --flows.c--> its counts      for each packet
 *   flows.c --> the top flows --> log, metrics                      each interval with packets
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include <pinion.h>

#include "flows.h"
#include "settings.h"

#define SECOND_NS 1000000000u
/* The protocol number of IPv6's fragment header. */
#define IPV6_FRAGMENT 44
/* Room for two IPv6 addresses with ports, and the words between. */
#define SHOWN_MAX (2 * INET6_ADDRSTRLEN + 48)

static struct settings settings;
/* All frames since the last report, of any kind. */
static struct amount recent;
/* When the interval began, if a frame has come in it; and when the top flows were last shown, if they are. */
static uint64_t since_ns = PINION_NEVER, shown_ns = PINION_NEVER;

static pinion_counter packets_seen, bytes_seen, flows_lost;
static pinion_gauge flows_known;
/* Gauges of the top flows, the greatest first. */
static pinion_named_gauge places[TOP_MAX];

static void declare_metrics(void)
{
    pinion_declare_counter(&packets_seen, "monitor_packets", "Frames that have passed.", PINION_NO_LABELS);
    pinion_declare_counter(&bytes_seen, "monitor_bytes", "Bytes of the frames that have passed.", PINION_NO_LABELS);
    pinion_declare_counter(&flows_lost, "monitor_flows_forgotten", "Flows that were forgotten because the table was full.", PINION_NO_LABELS);
    pinion_declare_gauge(&flows_known, "monitor_flows", "Flows that are remembered.", PINION_NO_LABELS);
    for (uint32_t place = 0; place < settings.top; place++) {
        const char *const help = "Rate of a top flow in the last interval.";
        char rank[11];
        snprintf(rank, sizeof rank, "%u", place + 1);
        pinion_declare_named_gauge(&places[place], "monitor_top_bits_per_second", help, PINION_LABELS({"rank", rank}), "flow");
    }
}

static int prepare(const uint8_t *config, size_t len)
{
    if (!settings_read(&settings, (const char *)config, len))
        return PINION_INIT_STATUS_CONFIG_REFUSED;
    if (!flows_make(settings.flows))
        return pinion_refuse("there is no memory for %u flows", settings.flows);
    declare_metrics();
    return PINION_INIT_STATUS_READY;
}

static void draw_key(void)
{
    flows_rekey();
}

/* Returns the flow of a packet. Packets without ports, such as later fragments, belong to one flow for their addresses
 * and protocol. */
static struct pinion_flow_key key_of(const struct pinion_headers *headers)
{
    struct pinion_flow_key key;
    if (!pinion_flow_of(headers, &key)) {
        /* Later fragments of IPv6 may carry any protocol number. */
        const bool is_part = headers->version == 6 && headers->is_fragment;
        key = (struct pinion_flow_key){.version = headers->version, .protocol = is_part ? IPV6_FRAGMENT : headers->protocol};
        memcpy(key.source, headers->source, sizeof key.source);
        memcpy(key.destination, headers->destination, sizeof key.destination);
    }
    return key;
}

static void see(const pinion_packet *packet, uint64_t now_ns)
{
    const size_t bytes = pinion_len(packet);
    recent.packets++;
    recent.bytes += bytes;
    pinion_counter_add(&packets_seen, 1);
    pinion_counter_add(&bytes_seen, bytes);
    struct pinion_headers headers;
    /* A frame that is not IP belongs to no flow. */
    if (pinion_headers(packet, &headers) != PINION_READABLE)
        return;
    const struct pinion_flow_key key = key_of(&headers);
    flows_see(&key, bytes, now_ns);
}

/* Without packets no report is due, so that the instance sleeps. */
static void wake_for_the_next_report(void)
{
    const uint64_t from_ns = since_ns != PINION_NEVER ? since_ns : shown_ns;
    pinion_wake_at(from_ns == PINION_NEVER ? PINION_NEVER : from_ns + (uint64_t)settings.every_s * SECOND_NS);
}

static void handle(pinion_packet *const *packets, size_t count)
{
    const uint64_t now_ns = pinion_now_ns(), forgotten = flows_forgotten();
    for (size_t i = 0; i < count; i++) {
        see(packets[i], now_ns);
        pinion_send(packets[i]);
    }
    pinion_counter_add(&flows_lost, flows_forgotten() - forgotten);
    pinion_gauge_set(&flows_known, flows_count());
    if (since_ns == PINION_NEVER) {
        since_ns = now_ns;
        wake_for_the_next_report();
    }
}

static int64_t bits_per_second(uint64_t bytes, uint64_t span_ns)
{
    return (int64_t)((double)bytes * 8 * SECOND_NS / (double)span_ns);
}

/* Formats a flow for people. */
static void show(const struct pinion_flow_key *key, char shown[SHOWN_MAX])
{
    const int family = key->version == 4 ? AF_INET : AF_INET6;
    char source[INET6_ADDRSTRLEN], destination[INET6_ADDRSTRLEN];
    inet_ntop(family, key->source, source, sizeof source);
    inet_ntop(family, key->destination, destination, sizeof destination);
    switch (key->protocol) {
    case PINION_TCP:
    case PINION_UDP:
        snprintf(shown, SHOWN_MAX, "%s %s port %u to %s port %u", key->protocol == PINION_TCP ? "tcp" : "udp", source,
                 pinion_load16(key->source_port), destination, pinion_load16(key->destination_port));
        break;
    case PINION_ICMP:
    case PINION_ICMPV6:
        snprintf(shown, SHOWN_MAX, "icmp %s to %s", source, destination);
        break;
    default:
        snprintf(shown, SHOWN_MAX, "protocol %u %s to %s", key->protocol, source, destination);
    }
}

static void report_flow(const struct flow *flow, uint32_t place, uint64_t now_ns, uint64_t span_ns)
{
    char shown[SHOWN_MAX];
    show(&flow->key, shown);
    const int64_t rate = bits_per_second(flow->recent.bytes, span_ns);
    pinion_named_gauge_set(&places[place], shown, rate);
    pinion_log(PINION_INFO,
               "%s: %llu packets, %llu bytes, %lld bit/s; in all %llu packets, %llu bytes, first seen %llu s ago, last %llu s ago",
               shown, (unsigned long long)flow->recent.packets, (unsigned long long)flow->recent.bytes, (long long)rate,
               (unsigned long long)flow->total.packets, (unsigned long long)flow->total.bytes,
               (unsigned long long)((now_ns - flow->first_ns) / SECOND_NS), (unsigned long long)((now_ns - flow->last_ns) / SECOND_NS));
}

static void report(uint64_t now_ns)
{
    /* Never zero: a deadline that has passed is at least one second later. */
    const uint64_t span_ns = now_ns - since_ns;
    const struct flow *top[TOP_MAX];
    const size_t count = flows_top(top, settings.top);
    pinion_log(PINION_INFO, "%llu packets, %llu bytes, %lld bit/s in %llu s; %u flows known, %llu forgotten so far",
               (unsigned long long)recent.packets, (unsigned long long)recent.bytes, (long long)bits_per_second(recent.bytes, span_ns),
               (unsigned long long)(span_ns / SECOND_NS), flows_count(), (unsigned long long)flows_forgotten());
    for (uint32_t place = 0; place < count; place++)
        report_flow(top[place], place, now_ns, span_ns);
    recent = (struct amount){0, 0};
}

static void interval_is_over(void)
{
    const uint64_t now_ns = pinion_now_ns();
    for (uint32_t place = 0; place < settings.top; place++)
        pinion_named_gauge_clear(&places[place]);
    if (since_ns == PINION_NEVER) {
        /* An interval without packets. */
        shown_ns = PINION_NEVER;
    } else {
        report(now_ns);
        shown_ns = now_ns;
    }
    since_ns = PINION_NEVER;
    wake_for_the_next_report();
}

PINION_FUNCTION(.init = prepare, .start = draw_key, .batch = handle, .expire = interval_is_over);
