/* Sockets of a function, over IPv4 and IPv6: TCP connections that end in it, UDP datagrams, and lookups of names. Peers connect to its ports,
 * and it connects to the addresses that its chain is granted (`outbound` in the manifest).
 *
 * The Makefile says so, before it includes pinion.mk:
 *
 *     NET := 1
 *
 * The protocols are those of the SDK for Rust, which is built along with the function, so the machine needs cargo with the target
 * wasm32-wasip1. SPECIFICATION.md, 6.10, has the rules of TCP that they keep.
 *
 * There are two forms. A service is called on events of many connections, for datagrams and for what else comes, and never waits. This one
 * echoes all input:
 *
 *     #include <pinion/net.h>
 *
 *     static int prepare(const uint8_t *config, size_t len, struct pinion_settings *settings)
 *     {
 *         settings->tcp_ports[0] = 7;
 *         return 0;
 *     }
 *
 *     static void ready(pinion_stream stream, void *connection)
 *     {
 *         uint8_t bytes[1024];
 *         for (;;) {
 *             const size_t room = pinion_stream_room(stream);
 *             const ptrdiff_t count = pinion_stream_read(stream, bytes, room < sizeof bytes ? room : sizeof bytes);
 *             if (count == 0 && room > 0)
 *                 pinion_stream_close(stream);
 *             if (count <= 0)
 *                 return;
 *             pinion_stream_write(stream, bytes, (size_t)count);
 *         }
 *     }
 *
 *     PINION_SERVICE(.init = prepare, .ready = ready);
 *
 * A program has a loop of its own, and its calls wait; it suits an instance that serves one client. This one does the same for one client
 * after the other:
 *
 *     static void run(void)
 *     {
 *         pinion_stream stream;
 *         while (pinion_accept(0, &stream) == PINION_NET_DONE) {
 *             uint8_t bytes[1024];
 *             ptrdiff_t count;
 *             while ((count = pinion_stream_read(stream, bytes, sizeof bytes)) > 0)
 *                 pinion_stream_write_all(stream, bytes, (size_t)count);
 *             pinion_stream_close(stream);
 *         }
 *     }
 *
 *     PINION_PROGRAM(.init = prepare, .run = run);
 *
 * Everything in pinion.h is there as well, except PINION_FUNCTION, pinion_wait and pinion_wait_until. The function has 256 slots, 128 of them
 * its own.
 *
 * A connection, a UDP flow or a lookup is a number. A call with a number that is none, or no longer one, returns PINION_NET_NO_SOCKET, and
 * one with an address outside of the module's memory returns PINION_NET_INVALID. */
#ifndef PINION_NET_H
#define PINION_NET_H

#ifndef PINION_WITH_NET
#error "a function with sockets has `NET := 1` in its Makefile, before the line that includes pinion.mk"
#endif

#include <pinion.h>

/* A function with sockets is not made by PINION_FUNCTION: its packets come by way of its sockets. */
#undef PINION_FUNCTION
#undef PINION_FUNCTION_WITH_SLOTS
#define PINION_FUNCTION(...)                                                                                                              \
    _Static_assert(0, "a function that includes pinion/net.h is made by PINION_SERVICE or PINION_PROGRAM")
#define PINION_FUNCTION_WITH_SLOTS(count, ...) PINION_FUNCTION(__VA_ARGS__)
#define PINION_NO_WAIT_ __attribute__((unavailable("a program waits by pinion_accept, pinion_sleep_until and the like, and a service never does")))
size_t pinion_wait(pinion_packet *packets[PINION_BATCH_PACKETS_MAX]) PINION_NO_WAIT_;
size_t pinion_wait_until(pinion_packet *packets[PINION_BATCH_PACKETS_MAX], uint64_t deadline_ns) PINION_NO_WAIT_;

/* --- Results. ------------------------------------------------------------------------------------------------------------------------ */

/** The result of a call. Calls that return a count return the negative of it. */
enum pinion_net {
    /** The call succeeded. */
    PINION_NET_DONE,
    /** In a service: there is nothing to read, no room to write, or no slot for a datagram. It works later: `ready` is called again when that
     *  may have changed, and a slot is free some time after what was in it was sent. */
    PINION_NET_LATER,
    /** The connection was reset or aborted, as pinion_stream_reason says. */
    PINION_NET_CLOSED,
    /** The function has called pinion_stream_shutdown, and can write no more. */
    PINION_NET_SHUT_DOWN,
    /** The time of pinion_set_timeout is over, or there was no answer in time. */
    PINION_NET_TIMED_OUT,
    /** An argument is no valid address, name or version, or lies outside of the module's memory. */
    PINION_NET_INVALID,
    /** There is no such connection or UDP flow, or it is over; or a service reads or writes another connection than the callback is about; or the
     *  port is not in the settings. */
    PINION_NET_NO_SOCKET,
    /** The call is not for this form of function, or not for this callback. */
    PINION_NET_NOT_NOW,
    /** The payload is longer than pinion_udp_bytes_max. */
    PINION_NET_TOO_LONG,
    /** All connections, UDP flows or lookups that there may be at once are in use. */
    PINION_NET_NO_ROOM,
    /** No packet has come yet by whose way a flow could leave. */
    PINION_NET_NO_WAY,
    /** The chain's grants do not allow flows of this protocol to this destination. */
    PINION_NET_NOT_GRANTED,
    /** The tenant or the instance has as many flows as it may have, or no port is left for another one to this destination. */
    PINION_NET_QUOTA,
    /** The node has no address of this version there, or no route leads to the destination. */
    PINION_NET_NO_ROUTE,
    /** The peer has no socket at the port. */
    PINION_NET_REFUSED,
    /** A router says that the peer cannot be reached. */
    PINION_NET_UNREACHABLE,
    /** The node has ended the flow. */
    PINION_NET_FLOW_ENDED,
    /** There is no such name. */
    PINION_NET_NO_SUCH_NAME,
    /** The name has no address of this version of IP. */
    PINION_NET_NO_ADDRESS,
    /** The resolvers have failed, refused to answer, or given an answer that is longer than a datagram. */
    PINION_NET_RESOLVER_FAILED,
    /** The settings name no resolver. */
    PINION_NET_NO_RESOLVER,
};

/** Returns a sentence that describes the result, for the log. */
const char *pinion_net_sentence(enum pinion_net result);

/** Why a connection has ended, or its peer sends no more. */
enum pinion_close {
    /** The peer may still send. */
    PINION_CLOSE_NONE,
    /** The peer has closed its side (FIN): it sends no more, and may still receive. */
    PINION_CLOSE_BY_PEER,
    /** The peer has reset the connection (RST). */
    PINION_CLOSE_RESET,
    /** The peer has sent nothing for `idle_timeout_ns`. */
    PINION_CLOSE_IDLE,
    /** The peer has accepted too little for `send_timeout_ns`. */
    PINION_CLOSE_SEND_TIMEOUT,
    /** One of the two before, and routers said that the peer cannot be reached. */
    PINION_CLOSE_UNREACHABLE,
    /** The node has ended the flow of a connection that the function has opened. */
    PINION_CLOSE_FLOW_ENDED,
    /** The function has aborted it. */
    PINION_CLOSE_ABORTED,
};

/* --- Addresses. ---------------------------------------------------------------------------------------------------------------------- */

/** An IP address, and a port where one is meant. */
struct pinion_address {
    /** 4 or 6. Memory of zeroes is no address. */
    uint8_t version;
    /** In network order: 4 bytes, or 16. The remaining bytes are zero. */
    uint8_t bytes[16];
    /** 0 in the answer to a lookup. */
    uint16_t port;
};

/** Bytes of the longest text of an address, with its terminating zero. */
#define PINION_ADDRESS_TEXT_BYTES 64

/** Reads `10.0.0.1:80` or `[2001:db8::1]:80`. Returns false if the text is no address with a port; `address` is then unchanged. */
bool pinion_address_parse(const char *text, struct pinion_address *address);
/** Writes an address as pinion_address_parse reads it, without the port if that is 0; an empty text if it is no address. */
void pinion_address_format(const struct pinion_address *address, char text[PINION_ADDRESS_TEXT_BYTES]);

/** The way by which a flow leaves the node: out of the port by which a packet came, in a VLAN. */
struct pinion_via {
    /** The way of a packet that came by that port. A message's way leads to no network. */
    pinion_way way;
    /** The VLAN; 0 for the untagged network. */
    uint16_t vlan;
};

/** Returns the way by which a packet came, and the VLAN of its outer tag. */
struct pinion_via pinion_via_of(const pinion_packet *packet);

/* --- Settings. ----------------------------------------------------------------------------------------------------------------------- */

/** Most ports of each protocol. */
#define PINION_PORTS_MAX 16
/** Most resolvers. */
#define PINION_RESOLVERS_MAX 4

/** Ports, limits and buffer sizes of a function with sockets. `init` finds the defaults in it. */
struct pinion_settings {
    /** The TCP ports to listen on; the first 0 ends them. Default: none. */
    uint16_t tcp_ports[PINION_PORTS_MAX];
    /** The UDP ports of which the function gets the datagrams, likewise. Default: none. */
    uint16_t udp_ports[PINION_PORTS_MAX];
    /** Most connections at once, 1 to 4096, including those that the function opens, and those that are being opened or closed. Default: 8. */
    uint16_t connections_max;
    /** Most UDP flows that the function opens at once, 0 to 4096. Default: 8. */
    uint16_t udp_flows_max;
    /** The DNS resolvers by which names are looked up; the first without a version ends them. The chain must be granted UDP to them. Default:
     *  none. */
    struct pinion_address resolvers[PINION_RESOLVERS_MAX];
    /** Size of each connection's receive buffer in bytes, 3000 to 16 MiB: the window that is offered to a peer. Default: 16 KiB. The buffers of
     *  all connections are allocated when the function is prepared; pages that were never used take no memory. */
    uint32_t receive_bytes;
    /** Size of each connection's send buffer in bytes, 3000 to 16 MiB: data that the peer has not acknowledged. Default: 64 KiB. */
    uint32_t send_bytes;
    /** How long a peer may be silent, in nanoseconds; acknowledgements and probes count as signs of life. Default: 60 s. */
    uint64_t idle_timeout_ns;
    /** How long a peer may accept none of the data sent to it, or less than 512 bytes if there is more, in nanoseconds; 0, the default, is as
     *  long as `idle_timeout_ns`. */
    uint64_t send_timeout_ns;
};

/* --- Connections. -------------------------------------------------------------------------------------------------------------------- */

/** A TCP connection. The field is private to the library. */
typedef struct pinion_stream {
    /* A number that no other connection of the instance has. Never 0. */
    uint64_t number_;
} pinion_stream;

/** Returns whether two numbers are of one connection. */
static inline bool pinion_same_stream(pinion_stream one, pinion_stream other)
{
    return one.number_ == other.number_;
}

/** Reads at most `capacity` bytes. Returns how many, or 0 if the peer has closed its side and all was read, or the negative of an `enum
 *  pinion_net`: -PINION_NET_LATER in a service with nothing to read, where a program waits instead. With a `capacity` of 0 returns 0. */
ptrdiff_t pinion_stream_read(pinion_stream stream, void *bytes, size_t capacity);
/** Writes at most `len` bytes, as far as there is room. Returns how many, or the negative of an `enum pinion_net`: -PINION_NET_LATER in a service
 *  without room, where a program waits. What was written is sent when the callback returns, or when the program waits. */
ptrdiff_t pinion_stream_write(pinion_stream stream, const void *bytes, size_t len);
/** Writes all of the bytes, in a program. Returns PINION_NET_DONE, or why only a part was written. */
enum pinion_net pinion_stream_write_all(pinion_stream stream, const void *bytes, size_t len);
/** Returns how many bytes a write would accept now: in a service, of the connection that the callback is about. Otherwise 0. */
size_t pinion_stream_room(pinion_stream stream);
/** Sends the written data, then a FIN. The peer may still send. */
enum pinion_net pinion_stream_shutdown(pinion_stream stream);
/** Closes the connection: written data is sent, and data that the peer still sends is discarded. The number is none any more. A second call returns
 *  PINION_NET_NO_SOCKET. */
enum pinion_net pinion_stream_close(pinion_stream stream);
/** Aborts the connection: data that was not sent yet is discarded. In a service it may be any connection. If it is another one than the callback is
 *  about, `ready` is called for it once more if it was open; if it was being opened, there are no callbacks for it any more. */
enum pinion_net pinion_stream_abort(pinion_stream stream);
/** Returns why the connection has ended, or why the peer sends no more. PINION_CLOSE_NONE also if there is no such connection,
 *  or if a service's callback is not about it. */
enum pinion_close pinion_stream_reason(pinion_stream stream);
/** Sets the addresses and ports of the peer and of this end, each of which may be NULL. */
enum pinion_net pinion_stream_ends(pinion_stream stream, struct pinion_address *peer, struct pinion_address *local);
/** Sets the way of the peer's last segment; of a connection that the function has opened, the way that it was given. */
enum pinion_net pinion_stream_via(pinion_stream stream, struct pinion_via *via);
/** In a service: schedules a call of `ready` for an open connection, which may be any. */
enum pinion_net pinion_stream_wake(pinion_stream stream);
/** In a service: schedules one call of `ready` for the connection that the callback is about, at this time of pinion_now_ns, even if nothing
 *  happens until then. PINION_NEVER cancels it. The latest call counts. */
enum pinion_net pinion_stream_wake_at(pinion_stream stream, uint64_t time_ns);

/** Opens a connection to an address that the chain is granted. If `via` is NULL, it leaves by the way of the packet or connection that the callback
 *  is about; if there is none, by that of the instance's first IP packet.
 *
 *  In a service, sets `stream` at once. `connected` is called when the peer has accepted it, else `connect_failed`, after 10 s at most.
 *  Returns PINION_NET_NO_ROOM or PINION_NET_NO_WAY if it cannot begin.
 *
 *  A program waits for the outcome, at most the time of pinion_set_timeout, and before the instance's first packet for that, too. */
enum pinion_net pinion_connect(const struct pinion_address *to, const struct pinion_via *via, pinion_stream *stream);

/* --- UDP. ---------------------------------------------------------------------------------------------------------------------------- */

/** A peer that has sent a datagram: where datagrams to it go. It can be kept. The fields after `local` are private to the library. */
struct pinion_udp_peer {
    /** The peer's address and port. */
    struct pinion_address address;
    /** The local address and port, to which it has sent. */
    struct pinion_address local;
    /* The way and the Ethernet header of frames to it. */
    pinion_way way_;
    uint8_t header_[22];
    uint8_t header_len_;
};

/** A UDP flow that the function opens. The field is private to the library. */
typedef struct pinion_udp_flow {
    /* A number that no other flow of the instance has; 0 for none. */
    uint64_t number_;
} pinion_udp_flow;

/** Returns whether two numbers are of one flow. */
static inline bool pinion_same_udp_flow(pinion_udp_flow one, pinion_udp_flow other)
{
    return one.number_ == other.number_;
}

/** A datagram that a service gets, whole and with a right checksum. It is valid until the callback returns, or answers it. */
struct pinion_datagram {
    /** The payload. */
    const uint8_t *payload;
    /** Its length in bytes. */
    size_t len;
    /** The sender, for datagrams that are sent later. */
    struct pinion_udp_peer peer;
    /** Whether it answers a flow that the function has opened, rather than being for one of its ports. */
    bool is_of_flow;
    /** That flow. */
    pinion_udp_flow flow;
};

/** Returns how many bytes of payload fit into an IP packet of 1500 bytes to a peer: 1472 over IPv4, 1452 over IPv6. */
static inline size_t pinion_udp_bytes_max(const struct pinion_udp_peer *peer)
{
    return peer->address.version == 4 ? 1472 : 1452;
}

/** Sends a datagram to a peer, in one of the function's own slots. In a service without a free slot returns PINION_NET_LATER; a program waits if
 *  very many datagrams are to be sent already. */
enum pinion_net pinion_udp_send(const struct pinion_udp_peer *peer, const void *payload, size_t len);
/** In a service's `datagram`, once: sends a datagram back to the sender, in the slot in which the received one lies, so there is always room. The
 *  payload may lie in the received datagram. */
enum pinion_net pinion_udp_answer(const void *payload, size_t len);
/** In a program: waits for a datagram to one of its ports. Returns how many bytes of it are in `bytes`; what does not fit is lost. Sets `peer`, which
 *  may be NULL. Else returns the negative of an `enum pinion_net`. Up to 32 datagrams wait at each port; further ones are dropped. */
ptrdiff_t pinion_udp_receive(uint16_t port, void *bytes, size_t capacity, struct pinion_udp_peer *peer);

/** Opens a flow of UDP datagrams to an address that the chain is granted, by a way as pinion_connect has it. In a service, sets `flow` at once, and
 *  `flow` is called when it is open or has ended. A program waits until it is open. The node ends a flow by which nothing was sent for 60 s. */
enum pinion_net pinion_udp_flow_open(const struct pinion_address *to, const struct pinion_via *via, pinion_udp_flow *flow);
/** Closes a flow. There are no callbacks for it any more. A second call returns PINION_NET_NO_SOCKET. */
enum pinion_net pinion_udp_flow_close(pinion_udp_flow flow);
/** Sets the addresses and ports of both ends of an open flow, each of which may be NULL. */
enum pinion_net pinion_udp_flow_ends(pinion_udp_flow flow, struct pinion_address *peer, struct pinion_address *local);
/** Sends a datagram by an open flow, as pinion_udp_send does. In a program, also returns what went wrong with one before. */
enum pinion_net pinion_udp_flow_send(pinion_udp_flow flow, const void *payload, size_t len);
/** In a program: waits for an answer. Returns how many bytes of it are in `bytes`; what does not fit is lost. Else returns the negative of an `enum
 *  pinion_net`: once -PINION_NET_REFUSED or -PINION_NET_UNREACHABLE if a datagram has not arrived, and -PINION_NET_FLOW_ENDED if the node has
 *  ended the flow. */
ptrdiff_t pinion_udp_flow_receive(pinion_udp_flow flow, void *bytes, size_t capacity);

/* --- Names. -------------------------------------------------------------------------------------------------------------------------- */

/** Most addresses in the answer to a lookup. */
#define PINION_ADDRESSES_MAX 16

/** A lookup under way, in a service. The field is private to the library. */
typedef struct pinion_lookup {
    /* A number that no other lookup of the instance has. Never 0. */
    uint64_t number_;
} pinion_lookup;

/** In a service: looks up a name's addresses of IP's `version` 4 or 6, by the resolvers of the settings. Sets `lookup` at once; `resolved` is
 *  called with the answer within 8 s. Answers are kept for as long as they say, an hour at most, those of 32 names; failures are not kept. */
enum pinion_net pinion_resolve(const char *name, int version, pinion_lookup *lookup);
/** The same in a program, which waits for the answer. Returns how many addresses it has put into `addresses`, at least one, or the negative of an
 *  `enum pinion_net`. */
ptrdiff_t pinion_resolve_and_wait(const char *name, int version, struct pinion_address *addresses, size_t capacity);

/* --- Programs only. ------------------------------------------------------------------------------------------------------------------ */

/** Waits until a peer has connected to a port of the settings, or to any of them if `port` is 0. Peers of other ports wait on. */
enum pinion_net pinion_accept(uint16_t port, pinion_stream *stream);
/** Limits how long each call of a program waits from now on for a peer to connect, to accept a connection, or to send something. PINION_NEVER, with
 *  which a program begins, sets no limit but those of the settings. Writes are limited by `send_timeout_ns`, lookups and the opening of UDP flows
 *  end by themselves. */
void pinion_set_timeout(uint64_t timeout_ns);
/** Waits until this time of pinion_now_ns. Meanwhile connections are served as in every wait, where nanosleep suspends the whole instance. */
enum pinion_net pinion_sleep_until(uint64_t time_ns);

/* --- What is not for a socket: messages, fragments, ICMP, other protocols, and what is addressed to other ports. ---------------------- */

/** In `packet`: refuses a packet. A segment of TCP is answered with a reset, if that is required (RFC 9293, section 3.10.7.1). Any other packet is
 *  dropped. */
void pinion_refuse_packet(pinion_packet *packet);

/* --- The module. --------------------------------------------------------------------------------------------------------------------- */

/** The callbacks of a service. Each may be missing. None of them may wait. */
struct pinion_service {
    /** Prepares the service from its configuration, as that of `struct pinion_function` does, and fills in its settings. */
    int (*init)(const uint8_t *config, size_t len, struct pinion_settings *settings);
    /** Called once in each instance, before its first packet: draw random keys here. */
    void (*start)(void);
    /** Called when a peer has connected. `ready` comes next, unless the connection is closed or aborted here. Returns the connection's state, which
     *  `ready` and `ended` get. */
    void *(*accept)(pinion_stream stream);
    /** Called when a connection that the service opens is open. `ready` comes next, unless it is closed or aborted here. Returns the connection's
     *  state. Without this callback it is closed. */
    void *(*connected)(pinion_stream stream);
    /** Called when a connection could not be opened. */
    void (*connect_failed)(pinion_stream stream, enum pinion_net error);
    /** Called when something may have happened to a connection: there may be data to read, or room to write again, the peer may have closed or reset
     *  it, or its time of pinion_stream_wake_at may have come. Some calls are spurious. Without this callback connections are closed. */
    void (*ready)(pinion_stream stream, void *connection);
    /** Called once for each state but NULL, when its connection was closed or aborted: free it here. No call of this header works here. */
    void (*ended)(void *connection);
    /** Called for each datagram to one of the service's ports, and for each that answers one of its flows. Without this callback it is dropped. */
    void (*datagram)(const struct pinion_datagram *datagram);
    /** Called when a flow is open (PINION_NET_DONE), when a datagram of it has not arrived (PINION_NET_REFUSED, PINION_NET_UNREACHABLE), and when it
     *  was not opened or has ended (any other): `is_over` tells whether the number is none any more. */
    void (*flow)(pinion_udp_flow flow, enum pinion_net news, bool is_over);
    /** Called with the answer to a lookup: PINION_NET_DONE and 1 to PINION_ADDRESSES_MAX addresses, or another result and none. */
    void (*resolved)(pinion_lookup lookup, enum pinion_net result, const struct pinion_address *addresses, size_t count);
    /** Called for each packet that is not for a socket. A packet for which it decides nothing is dropped; without this callback it is refused. */
    void (*packet)(pinion_packet *packet);
    /** Called when the time of pinion_wake_at has come. */
    void (*expire)(void);
};

/** The callbacks of a program. */
struct pinion_program {
    /** As that of `struct pinion_service`. */
    int (*init)(const uint8_t *config, size_t len, struct pinion_settings *settings);
    /** As that of `struct pinion_service`, while the program waits. Of this header's calls only pinion_refuse_packet and pinion_via_of work
     *  here. */
    void (*packet)(pinion_packet *packet);
    /** Runs once in each instance. When it returns, the instance ends as soon as all written data was acknowledged, or after 10 s. While it computes
     *  without a wait, no segment is answered or acknowledged, and arriving packets fill its slots. */
    void (*run)(void);
};

/* Which of the two a module is, and how it takes packets. */
struct pinion_net_module_ {
    const struct pinion_service *service;
    const struct pinion_program *program;
    void (*deliver)(const struct pinion_descriptor *received, uint8_t *slot);
};

extern const struct pinion_net_module_ pinion_net_module_;
void pinion_deliver_(const struct pinion_descriptor *received, uint8_t *slot);

/** Makes a module of a service, given by its callbacks as in `.ready = answer`. Use it once. */
#define PINION_SERVICE(...)                                                                                                               \
    static const struct pinion_service pinion_service_ = {__VA_ARGS__};                                                                   \
    const struct pinion_net_module_ pinion_net_module_ = {.service = &pinion_service_, .deliver = pinion_deliver_}

/** Makes a module of a program, given by its callbacks as in `.run = run`. Use it once. */
#define PINION_PROGRAM(...)                                                                                                               \
    static const struct pinion_program pinion_program_ = {__VA_ARGS__};                                                                   \
    const struct pinion_net_module_ pinion_net_module_ = {.program = &pinion_program_, .deliver = pinion_deliver_}

#endif
