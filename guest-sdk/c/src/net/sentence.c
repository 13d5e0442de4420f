/* Sentences for the log. */
#include <pinion/net.h>

const char *pinion_net_sentence(enum pinion_net result)
{
    switch (result) {
    case PINION_NET_DONE:
        return "the call succeeded";
    case PINION_NET_LATER:
        return "there is nothing to read, or no room to write: try again later";
    case PINION_NET_CLOSED:
        return "the connection was reset or aborted";
    case PINION_NET_SHUT_DOWN:
        return "the function has shut the connection down, and can write no more";
    case PINION_NET_TIMED_OUT:
        return "there was no answer in time";
    case PINION_NET_INVALID:
        return "an argument is no valid address, name or version, or lies outside of the module's memory";
    case PINION_NET_NO_SOCKET:
        return "there is no such connection, flow or port";
    case PINION_NET_NOT_NOW:
        return "the call is not for this form of function or this callback";
    case PINION_NET_TOO_LONG:
        return "the payload is longer than a datagram's can be";
    case PINION_NET_NO_ROOM:
        return "all connections, flows or lookups are in use: raise `connections_max` or `udp_flows_max`";
    case PINION_NET_NO_WAY:
        return "no packet has come yet by whose way the flow could leave";
    case PINION_NET_NOT_GRANTED:
        return "the chain is not granted flows to this destination";
    case PINION_NET_QUOTA:
        return "the tenant or the instance has as many flows as it may have";
    case PINION_NET_NO_ROUTE:
        return "the node has no address of this version there, or no route leads to the destination";
    case PINION_NET_REFUSED:
        return "the peer has no socket at this port";
    case PINION_NET_UNREACHABLE:
        return "the peer cannot be reached";
    case PINION_NET_FLOW_ENDED:
        return "the node has ended the flow";
    case PINION_NET_NO_SUCH_NAME:
        return "there is no such name";
    case PINION_NET_NO_ADDRESS:
        return "the name has no address of this version of IP";
    case PINION_NET_RESOLVER_FAILED:
        return "the resolver has failed";
    case PINION_NET_NO_RESOLVER:
        return "the settings name no resolver";
    }
    return "there is no such result";
}
