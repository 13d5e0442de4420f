/* Flow keys. Their bytes equal those of the SDK for Rust, so that functions of both SDKs can share a field of state. */
#include <string.h>

#include "internal.h"

_Static_assert(sizeof(struct pinion_flow_key) == 38, "a flow key has no padding");
_Static_assert(sizeof(struct pinion_flow_key) <= PINION_STATE_KEY_BYTES_MAX, "a flow key must fit a key of state");

bool pinion_flow_of(const struct pinion_headers *headers, struct pinion_flow_key *flow)
{
    uint16_t source_port = 0, destination_port = 0;
    if (headers->protocol == PINION_TCP || headers->protocol == PINION_UDP) {
        if (!headers->has_ports)
            return false;
        source_port = headers->source_port;
        destination_port = headers->destination_port;
    } else if (headers->protocol == (headers->version == 4 ? PINION_ICMP : PINION_ICMPV6)) {
        if (!headers->is_echo)
            return false;
        source_port = destination_port = headers->echo_id;
    } else if (headers->is_fragment && headers->fragment_offset > 0) {
        return false;
    }
    *flow = (struct pinion_flow_key){.version = headers->version, .protocol = headers->protocol};
    pinion_store16(flow->source_port, source_port);
    pinion_store16(flow->destination_port, destination_port);
    memcpy(flow->source, headers->source, sizeof flow->source);
    memcpy(flow->destination, headers->destination, sizeof flow->destination);
    return true;
}

struct pinion_flow_key pinion_flow_reversed(const struct pinion_flow_key *flow)
{
    struct pinion_flow_key reversed = *flow;
    memcpy(reversed.source_port, flow->destination_port, sizeof reversed.source_port);
    memcpy(reversed.destination_port, flow->source_port, sizeof reversed.destination_port);
    memcpy(reversed.source, flow->destination, sizeof reversed.source);
    memcpy(reversed.destination, flow->source, sizeof reversed.destination);
    return reversed;
}

struct pinion_flow_key pinion_flow_both_ways(const struct pinion_flow_key *flow)
{
    int order = memcmp(flow->source, flow->destination, sizeof flow->source);
    if (order == 0)
        order = memcmp(flow->source_port, flow->destination_port, sizeof flow->source_port);
    return order <= 0 ? *flow : pinion_flow_reversed(flow);
}
