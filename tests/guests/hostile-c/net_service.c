/* A service in C: it echoes by TCP and UDP, connects for its clients, answers pings and calls, and misuses its sockets when it is told to.
 *
 * | port | what it does |
 * |---|---|
 * | TCP 7 | echoes |
 * | TCP 9 | greets 50 ms after the client has connected, and closes |
 * | TCP 19 | misuses its connection, and says what was wrong |
 * | UDP 7 | answers each datagram with the same |
 * | UDP 9 | answers 50 ms later |
 * | UDP 7000 | does for its client what each datagram says: `tcp ADDRESS:PORT TEXT`, `udp ADDRESS:PORT TEXT`, `name NAME` |
 *
 * Calls: `reason` is answered with why the latest connection has ended, `ended` with how many states of connections were freed, `misuse` and
 * `slots` with what was wrong, `later` after 50 ms, and `twice` twice, which ends the instance. The configuration is the resolver. */
#include <stdlib.h>

#include <pinion/net.h>

#include "check.h"

#define DELAY_NS 50000000

/* One of the service's connections: what a peer has opened, or what it has opened for a client. */
struct connection {
    bool is_own, has_waited;
    struct pinion_udp_peer client;
    char text[1200];
    size_t len;
};

/* What the service does for a client's datagram. */
static struct task {
    struct pinion_udp_peer client;
    char text[1200];
    size_t len;
    pinion_stream stream;
    pinion_udp_flow flow;
    pinion_lookup lookup;
} task;

static struct {
    struct pinion_udp_peer peer;
    uint8_t bytes[1400];
    size_t len;
} late;

/* A call that is answered later, and the one that is answered now. */
static pinion_packet *held, *called;
static enum pinion_close reason;
static unsigned ended_count;

static int prepare(const uint8_t *config, size_t len, struct pinion_settings *settings)
{
    static const uint16_t tcp[] = {7, 9, 19}, udp[] = {7, 9, 7000};
    memcpy(settings->tcp_ports, tcp, sizeof tcp);
    memcpy(settings->udp_ports, udp, sizeof udp);
    settings->idle_timeout_ns = 2000000000;
    if (len > 0 && !pinion_address_parse((const char *)config, &settings->resolvers[0]))
        return pinion_refuse("\"%s\" is no address of a resolver", (const char *)config);
    return 0;
}

static void tell(const struct pinion_udp_peer *client, const char *text, size_t len)
{
    const enum pinion_net sent = pinion_udp_send(client, text, len);
    if (sent != PINION_NET_DONE)
        pinion_log(PINION_WARN, "no answer to a client: %s", pinion_net_sentence(sent));
}

static void tell_result(enum pinion_net result)
{
    const char *sentence = pinion_net_sentence(result);
    tell(&task.client, sentence, strlen(sentence));
}

/* --- Connections. ---------------------------------------------------------------------------------------------------------------------- */

static void misuse_connection(pinion_stream stream)
{
    const pinion_stream none = {stream.number_ + 1}, null = {0};
    uint8_t bytes[4];
    struct pinion_address address;
    CHECK_IS(pinion_stream_read(none, bytes, 4), -PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_write(null, bytes, 4), -PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_close(none), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_abort(none), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_wake(null), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_reason(none), PINION_CLOSE_NONE);
    CHECK_IS(pinion_stream_room(none), 0);
    CHECK_IS(pinion_stream_read(stream, NULL, 4), -PINION_NET_INVALID);
    CHECK_IS(pinion_stream_read(stream, bytes, SIZE_MAX), -PINION_NET_INVALID);
    CHECK_IS(pinion_stream_read(stream, (void *)0xfffffff0, 8), -PINION_NET_INVALID);
    CHECK_IS(pinion_stream_read(stream, bytes, 0), 0);
    CHECK_IS(pinion_stream_read(stream, bytes, 4), -PINION_NET_LATER);
    CHECK_IS(pinion_stream_write(stream, bytes, SIZE_MAX), -PINION_NET_INVALID);
    CHECK_IS(pinion_stream_write(stream, (void *)0x7ffffff0, 0x80000000u), -PINION_NET_INVALID);
    CHECK_IS(pinion_stream_ends(stream, (struct pinion_address *)0xfffffff0, NULL), PINION_NET_INVALID);
    CHECK_IS(pinion_stream_ends(stream, NULL, &address), PINION_NET_DONE);
    CHECK_IS(address.port, 19);
    CHECK_IS(pinion_stream_write_all(stream, bytes, 4), PINION_NET_NOT_NOW);
    CHECK_IS(pinion_udp_answer(bytes, 4), PINION_NET_NOT_NOW);
    CHECK_IS(pinion_stream_close(stream), PINION_NET_DONE);
    CHECK_IS(pinion_stream_close(stream), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_abort(stream), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_read(stream, bytes, 4), -PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_wake_at(stream, PINION_NEVER), PINION_NET_NO_SOCKET);
}

static char connection_problem[sizeof problem] = "nobody has connected";

static void *accepted(pinion_stream stream)
{
    struct pinion_address local;
    struct connection *connection = calloc(1, sizeof *connection);
    pinion_stream_ends(stream, NULL, &local);
    if (!connection || local.port == 7)
        return connection;
    if (local.port == 9)
        pinion_stream_wake_at(stream, pinion_now_ns() + DELAY_NS);
    if (local.port == 19) {
        strcpy(problem, "ok");
        misuse_connection(stream);
        strcpy(connection_problem, problem);
    }
    connection->has_waited = local.port == 9;
    return connection;
}

static void *connected(pinion_stream stream)
{
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        return NULL;
    connection->is_own = true;
    connection->client = task.client;
    pinion_stream_write(stream, task.text, task.len);
    pinion_stream_shutdown(stream);
    return connection;
}

static void connect_failed(pinion_stream stream, enum pinion_net error)
{
    if (pinion_same_stream(stream, task.stream))
        tell_result(error);
}

static void echo(pinion_stream stream)
{
    uint8_t bytes[1024];
    for (;;) {
        const size_t room = pinion_stream_room(stream);
        const ptrdiff_t count = pinion_stream_read(stream, bytes, room < sizeof bytes ? room : sizeof bytes);
        if (count == 0 && room > 0)
            pinion_stream_close(stream);
        if (count <= 0)
            return;
        pinion_stream_write(stream, bytes, (size_t)count);
    }
}

/* Collects what the server answers until it closes, and passes it on. */
static void pass_on(pinion_stream stream, struct connection *connection)
{
    ptrdiff_t count;
    while ((count = pinion_stream_read(stream, connection->text + connection->len, sizeof connection->text - connection->len)) > 0)
        connection->len += (size_t)count;
    if (count == -PINION_NET_LATER)
        return;
    if (count == 0)
        tell(&connection->client, connection->text, connection->len);
    else
        tell_result((enum pinion_net)-count);
    pinion_stream_close(stream);
}

static void ready(pinion_stream stream, void *state)
{
    struct connection *connection = state;
    struct pinion_address local;
    if (!connection || pinion_stream_ends(stream, NULL, &local) != PINION_NET_DONE)
        return;
    if (pinion_stream_reason(stream) != PINION_CLOSE_NONE)
        reason = pinion_stream_reason(stream);
    if (connection->is_own)
        return pass_on(stream, connection);
    if (local.port != 9)
        return echo(stream);
    /* Its first call comes at once, the next one in time. */
    if (connection->has_waited) {
        connection->has_waited = false;
        connection->len = (size_t)(pinion_now_ns() / 1000);
        return;
    }
    char text[64];
    const unsigned waited_us = (unsigned)((size_t)(pinion_now_ns() / 1000) - connection->len);
    pinion_stream_write(stream, text, (size_t)snprintf(text, sizeof text, "%s", waited_us >= 40000 ? "in time" : "too early"));
    pinion_stream_close(stream);
}

static void ended(void *state)
{
    uint8_t byte;
    struct connection *connection = state;
    if (pinion_stream_read((pinion_stream){1}, &byte, 1) != -PINION_NET_NOT_NOW)
        pinion_panic("a connection was read in `ended`");
    ended_count++;
    free(connection);
}

/* --- Datagrams. ------------------------------------------------------------------------------------------------------------------------ */

/* Begins what a datagram says. */
static enum pinion_net begin(const char *text)
{
    char to[64] = "";
    int at = 0;
    struct pinion_address address;
    if (sscanf(text, "name %63s", to) == 1)
        return pinion_resolve(to, 4, &task.lookup);
    if (sscanf(text, "%*s %63s %n", to, &at) < 1 || !pinion_address_parse(to, &address))
        return PINION_NET_INVALID;
    task.len = strlen(text + at);
    memcpy(task.text, text + at, task.len);
    return text[0] == 't' ? pinion_connect(&address, NULL, &task.stream) : pinion_udp_flow_open(&address, NULL, &task.flow);
}

static void datagram(const struct pinion_datagram *datagram)
{
    char text[1200] = "";
    if (datagram->is_of_flow) {
        if (pinion_same_udp_flow(datagram->flow, task.flow))
            tell(&task.client, (const char *)datagram->payload, datagram->len);
        pinion_udp_flow_close(datagram->flow);
    } else if (datagram->peer.local.port == 7) {
        pinion_udp_answer(datagram->payload, datagram->len);
    } else if (datagram->peer.local.port == 9 && datagram->len <= sizeof late.bytes) {
        late.peer = datagram->peer;
        late.len = datagram->len;
        memcpy(late.bytes, datagram->payload, datagram->len);
        pinion_wake_at(pinion_now_ns() + DELAY_NS);
    } else if (datagram->len < sizeof text) {
        memcpy(text, datagram->payload, datagram->len);
        task.client = datagram->peer;
        const enum pinion_net begun = begin(text);
        if (begun != PINION_NET_DONE)
            tell_result(begun);
    }
}

static void expire(void)
{
    if (held) {
        pinion_answer(held, "late", 4);
        held = NULL;
        return;
    }
    const enum pinion_net sent = pinion_udp_send(&late.peer, late.bytes, late.len);
    if (sent != PINION_NET_DONE)
        pinion_panic("a late answer: %s", pinion_net_sentence(sent));
}

static void flow(pinion_udp_flow flow, enum pinion_net news, bool is_over)
{
    if (!pinion_same_udp_flow(flow, task.flow))
        return;
    if (news != PINION_NET_DONE) {
        tell_result(news);
        if (!is_over)
            pinion_udp_flow_close(flow);
        return;
    }
    const enum pinion_net sent = pinion_udp_flow_send(flow, task.text, task.len);
    if (sent != PINION_NET_DONE)
        tell_result(sent);
}

static void resolved(pinion_lookup lookup, enum pinion_net result, const struct pinion_address *addresses, size_t count)
{
    char text[PINION_ADDRESS_TEXT_BYTES];
    if (lookup.number_ != task.lookup.number_)
        return;
    if (result != PINION_NET_DONE || count == 0)
        return tell_result(result);
    pinion_address_format(&addresses[0], text);
    tell(&task.client, text, strlen(text));
}

/* --- What is not for a socket. ---------------------------------------------------------------------------------------------------------- */

/* Turns an echo request over IPv4 into its answer. */
static bool answer_ping(pinion_packet *packet)
{
    struct pinion_headers headers;
    if (pinion_headers(packet, &headers) != PINION_READABLE || headers.version != 4 || !headers.has_icmp || headers.icmp_type != 8)
        return false;
    uint8_t *frame = pinion_data(packet), old[12];
    memcpy(old, frame, sizeof old);
    memcpy(frame, old + 6, 6);
    memcpy(frame + 6, old, 6);
    memcpy(frame + headers.network + 12, headers.destination, 4);
    memcpy(frame + headers.network + 16, headers.source, 4);
    frame[headers.transport] = 0;
    pinion_complete_checksums(packet);
    pinion_reply(packet);
    return true;
}

static void misuse_in_packet(void)
{
    const pinion_udp_flow no_flow = {12345};
    struct pinion_udp_peer forged = {.address = {.version = 4, .port = 5}, .local = {.version = 4, .port = 7}};
    struct pinion_address address, no_address = {.version = 5, .port = 7};
    pinion_stream stream;
    pinion_udp_flow flow;
    pinion_lookup lookup;
    uint8_t bytes[2000] = {0};
    CHECK(!pinion_address_parse("10.0.0.1", &address));
    CHECK(!pinion_address_parse("[fd00::1]:70000", &address));
    CHECK(!pinion_address_parse(NULL, &address));
    CHECK(pinion_address_parse("[fd00::1]:7", &address));
    CHECK_IS(address.version, 6);
    CHECK_IS(pinion_connect(&no_address, NULL, &stream), PINION_NET_INVALID);
    CHECK_IS(pinion_connect(NULL, NULL, &stream), PINION_NET_INVALID);
    CHECK_IS(pinion_connect(&address, NULL, NULL), PINION_NET_INVALID);
    CHECK_IS(pinion_connect(&address, (struct pinion_via *)0xffffff00, &stream), PINION_NET_INVALID);
    CHECK_IS(pinion_udp_flow_open(&no_address, NULL, &flow), PINION_NET_INVALID);
    CHECK_IS(pinion_udp_flow_close(no_flow), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_udp_flow_send(no_flow, bytes, 4), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_udp_flow_ends(no_flow, &address, NULL), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_udp_send(&forged, bytes, 4), PINION_NET_INVALID);
    forged.header_len_ = 200;
    CHECK_IS(pinion_udp_send(&forged, bytes, 4), PINION_NET_INVALID);
    forged.header_len_ = 14;
    CHECK_IS(pinion_udp_send(&forged, bytes, sizeof bytes), PINION_NET_TOO_LONG);
    CHECK_IS(pinion_udp_send(&forged, (void *)0xfffffff0, 100), PINION_NET_INVALID);
    CHECK_IS(pinion_udp_receive(7, bytes, sizeof bytes, NULL), -PINION_NET_NOT_NOW);
    CHECK_IS(pinion_accept(7, &stream), PINION_NET_NOT_NOW);
    CHECK_IS(pinion_sleep_until(0), PINION_NET_NOT_NOW);
    CHECK_IS(pinion_resolve("a..b", 4, &lookup), PINION_NET_INVALID);
    CHECK_IS(pinion_resolve("a.test", 5, &lookup), PINION_NET_INVALID);
    CHECK_IS(pinion_resolve((const char *)0xffffff00, 4, &lookup), PINION_NET_INVALID);
    CHECK_IS(pinion_resolve_and_wait("a.test", 4, &address, 1), -PINION_NET_NOT_NOW);
}

/* Makes packets until there are no slots left, and gives all back, again and again. */
static void use_slots(void)
{
    pinion_packet *made[PINION_SLOT_COUNT_DEFAULT];
    size_t most = 0;
    for (int round = 0; round < 10; round++) {
        size_t count = 0;
        while (count < PINION_SLOT_COUNT_DEFAULT && (made[count] = pinion_clone(called)))
            count++;
        CHECK(count > 100 && count <= 128 && count >= most);
        most = count;
        while (count-- > 0) {
            CHECK_IS(pinion_len(made[count]), pinion_len(called));
            CHECK_IS(memcmp(pinion_data(made[count]), pinion_data(called), pinion_len(called)), 0);
            pinion_drop(made[count]);
        }
    }
    CHECK(!pinion_make(NULL, PINION_PACKET_BYTES_MAX + 1, pinion_way_of(called)));
    pinion_packet *largest = pinion_make(NULL, PINION_PACKET_BYTES_MAX, pinion_way_of(called));
    CHECK(largest && pinion_trim_front(largest, 100) && pinion_prepend(largest, 164) && !pinion_prepend(largest, 1));
    pinion_drop(largest);
}

static void answer_later(void)
{
    pinion_hold(called);
    held = called;
    pinion_wake_at(pinion_now_ns() + DELAY_NS);
}

static void answer_twice(void)
{
    pinion_answer(called, "once", 4);
}

static void misuse_in_ready(void)
{
    strcpy(problem, connection_problem);
}

static void say_reason(void)
{
    static const char *const names[] = {"none", "by peer", "reset", "idle", "send timeout", "unreachable", "flow ended", "aborted"};
    strcpy(problem, names[reason]);
}

static void say_ended(void)
{
    snprintf(problem, sizeof problem, "%u", ended_count);
}

static void packet(pinion_packet *packet)
{
    static const struct check_case cases[] = {
        {"reason", say_reason},
        {"ended", say_ended},
        {"misuse", misuse_in_packet},
        {"misuse of a connection", misuse_in_ready},
        {"slots", use_slots},
        {"twice", answer_twice},
    };
    uint8_t *payload;
    size_t len;
    called = packet;
    if (pinion_message(packet, &payload, &len) && len == 5 && memcmp(payload, "later", 5) == 0)
        answer_later();
    else if (pinion_message(packet, &payload, &len))
        check_answer(packet, cases, sizeof cases / sizeof *cases);
    else if (!answer_ping(packet))
        pinion_refuse_packet(packet);
}

PINION_SERVICE(.init = prepare, .accept = accepted, .connected = connected, .connect_failed = connect_failed, .ready = ready, .ended = ended,
               .datagram = datagram, .flow = flow, .resolved = resolved, .packet = packet, .expire = expire);
