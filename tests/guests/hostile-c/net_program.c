/* A program in C, in blocking style, as its configuration says:
 *
 * | configuration | what it does |
 * |---|---|
 * | `echo` | echoes by TCP at ports 7 and 1007, for one client after the other, and says by log why each has ended; returns after a client of 1007 |
 * | `ask RESOLVER` | does for its clients what each datagram to UDP 7000 says, as in obey() |
 *
 * Meanwhile it answers calls with "hello, " and their payload. */
#include <stdlib.h>

#include <pinion/net.h>

#include "check.h"

#define PATIENCE_NS 10000000000u

static bool is_echo;

static int prepare(const uint8_t *config, size_t len, struct pinion_settings *settings)
{
    (void)len;
    is_echo = strcmp((const char *)config, "echo") == 0;
    settings->tcp_ports[0] = 7;
    settings->tcp_ports[1] = 1007;
    settings->udp_ports[0] = 7000;
    settings->idle_timeout_ns = 60000000000;
    const bool asks = strncmp((const char *)config, "ask ", 4) == 0;
    if (is_echo || (asks && pinion_address_parse((const char *)config + 4, &settings->resolvers[0])))
        return 0;
    return pinion_refuse("\"%s\" is neither `echo` nor `ask ADDRESS:PORT`", (const char *)config);
}

static void packet(pinion_packet *packet)
{
    uint8_t *payload;
    char text[100];
    size_t len;
    pinion_stream stream;
    if (!pinion_message(packet, &payload, &len)) {
        pinion_refuse_packet(packet);
        return;
    }
    if (pinion_accept(0, &stream) != PINION_NET_NOT_NOW)
        pinion_panic("a connection was accepted while the program waits already");
    const int written = snprintf(text, sizeof text, "hello, %.*s", (int)len, (const char *)payload);
    pinion_answer(packet, text, (size_t)written);
}

/* Echoes until the client closes. Returns the port to which it has connected. */
static uint16_t echo(pinion_stream stream)
{
    static const char *const names[] = {"none", "by peer", "reset", "idle", "send timeout", "unreachable", "flow ended", "aborted"};
    uint8_t bytes[1024];
    ptrdiff_t count;
    struct pinion_address local = {0};
    pinion_stream_ends(stream, NULL, &local);
    while ((count = pinion_stream_read(stream, bytes, sizeof bytes)) > 0)
        if (pinion_stream_write_all(stream, bytes, (size_t)count) != PINION_NET_DONE)
            break;
    pinion_log(PINION_INFO, "ended: %s", names[pinion_stream_reason(stream)]);
    pinion_stream_close(stream);
    return local.port;
}

static void serve_echo(void)
{
    pinion_stream stream;
    while (pinion_accept(0, &stream) == PINION_NET_DONE)
        if (echo(stream) == 1007)
            return;
}

/* Asks a server by TCP, and returns how many bytes it answers until it closes. */
static ptrdiff_t ask_tcp(const struct pinion_address *to, const char *text, char *answer, size_t capacity)
{
    pinion_stream stream;
    size_t len = 0;
    ptrdiff_t count;
    enum pinion_net result = pinion_connect(to, NULL, &stream);
    if (result != PINION_NET_DONE)
        return -result;
    result = pinion_stream_write_all(stream, text, strlen(text));
    pinion_stream_shutdown(stream);
    while ((count = pinion_stream_read(stream, answer + len, capacity - len)) > 0)
        len += (size_t)count;
    pinion_stream_close(stream);
    return result != PINION_NET_DONE ? -result : count < 0 ? count : (ptrdiff_t)len;
}

static ptrdiff_t ask_udp(const struct pinion_address *to, const char *text, char *answer, size_t capacity)
{
    pinion_udp_flow flow;
    enum pinion_net result = pinion_udp_flow_open(to, NULL, &flow);
    if (result != PINION_NET_DONE)
        return -result;
    result = pinion_udp_flow_send(flow, text, strlen(text));
    const ptrdiff_t count = result != PINION_NET_DONE ? -result : pinion_udp_flow_receive(flow, answer, capacity);
    pinion_udp_flow_close(flow);
    return count;
}

static ptrdiff_t look_up(const char *name, char *answer)
{
    struct pinion_address addresses[PINION_ADDRESSES_MAX];
    size_t len = 0;
    for (int version = 4; version <= 6; version += 2) {
        char text[PINION_ADDRESS_TEXT_BYTES];
        const ptrdiff_t count = pinion_resolve_and_wait(name, version, addresses, PINION_ADDRESSES_MAX);
        if (count < 0)
            return count;
        pinion_address_format(&addresses[0], text);
        len += (size_t)sprintf(answer + len, "%s ", text);
    }
    return (ptrdiff_t)len;
}

static void misuse(void)
{
    const pinion_stream none = {12345};
    const pinion_udp_flow no_flow = {12345};
    struct pinion_address address, no_address = {0};
    struct pinion_udp_peer forged = {.header_len_ = 255};
    pinion_stream stream;
    pinion_lookup lookup;
    uint8_t bytes[4] = {0};
    pinion_set_timeout(1000000);
    CHECK_IS(pinion_accept(7, &stream), PINION_NET_TIMED_OUT);
    CHECK_IS(pinion_accept(0, &stream), PINION_NET_TIMED_OUT);
    CHECK_IS(pinion_accept(0, (pinion_stream *)0xfffffff0), PINION_NET_INVALID);
    CHECK_IS(pinion_udp_receive(7000, bytes, 4, NULL), -PINION_NET_TIMED_OUT);
    CHECK_IS(pinion_udp_receive(7000, bytes, 4, (struct pinion_udp_peer *)0xfffffff0), -PINION_NET_INVALID);
    CHECK_IS(pinion_udp_receive(7000, bytes, SIZE_MAX, NULL), -PINION_NET_INVALID);
    CHECK_IS(pinion_udp_receive(9, bytes, 4, NULL), -PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_read(none, bytes, 4), -PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_write_all(none, bytes, 4), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_close(none), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_abort(none), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_stream_wake(none), PINION_NET_NOT_NOW);
    CHECK_IS(pinion_udp_flow_close(no_flow), PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_udp_flow_receive(no_flow, bytes, 4), -PINION_NET_NO_SOCKET);
    CHECK_IS(pinion_udp_send(&forged, bytes, 4), PINION_NET_INVALID);
    CHECK_IS(pinion_udp_answer(bytes, 4), PINION_NET_NOT_NOW);
    CHECK_IS(pinion_connect(&no_address, NULL, &stream), PINION_NET_INVALID);
    CHECK_IS(pinion_resolve("a.test", 4, &lookup), PINION_NET_NOT_NOW);
    CHECK_IS(pinion_resolve_and_wait("a..b", 4, &address, 1), -PINION_NET_INVALID);
    CHECK_IS(pinion_resolve_and_wait("a.test", 5, &address, 1), -PINION_NET_INVALID);
    CHECK(!pinion_make(bytes, 4, (pinion_way){0}));
}

/* Does what a client says. Returns how many bytes its answer has, or the negative of an `enum pinion_net`. */
static ptrdiff_t obey(const char *asked, char *answer, size_t capacity)
{
    char to[64] = "";
    int at = 0;
    struct pinion_address address;
    const uint64_t begun_ns = pinion_now_ns();
    if (strcmp(asked, "misuse") == 0) {
        strcpy(problem, "ok");
        misuse();
        pinion_set_timeout(PATIENCE_NS);
        return sprintf(answer, "%s", problem);
    }
    if (strcmp(asked, "sleep") == 0) {
        const enum pinion_net slept = pinion_sleep_until(begun_ns + 50000000);
        return slept != PINION_NET_DONE ? -slept : sprintf(answer, "%s", pinion_now_ns() - begun_ns >= 50000000 ? "slept" : "woke too early");
    }
    if (sscanf(asked, "name %63s", to) == 1)
        return look_up(to, answer);
    if (sscanf(asked, "%*s %63s %n", to, &at) < 1 || !pinion_address_parse(to, &address))
        return -PINION_NET_INVALID;
    return asked[0] == 't' ? ask_tcp(&address, asked + at, answer, capacity) : ask_udp(&address, asked + at, answer, capacity);
}

static void serve_asked(void)
{
    char asked[1400], answer[1400];
    struct pinion_udp_peer client;
    ptrdiff_t count;
    while ((count = pinion_udp_receive(7000, asked, sizeof asked - 1, &client)) >= 0) {
        asked[count] = 0;
        pinion_set_timeout(PATIENCE_NS);
        count = obey(asked, answer, sizeof answer);
        if (count < 0)
            count = sprintf(answer, "%s", pinion_net_sentence((enum pinion_net)-count));
        pinion_udp_send(&client, answer, (size_t)count);
        pinion_set_timeout(PINION_NEVER);
    }
}

static void run(void)
{
    if (is_echo)
        serve_echo();
    else
        serve_asked();
}

PINION_PROGRAM(.init = prepare, .packet = packet, .run = run);
