/* The fake node: see the header. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake.h"

enum {
    VERDICTS_MAX = 4 * PINION_SLOT_COUNT_MAX,
    LINES_MAX = 1000,
    NAME_BYTES_MAX = 200,
    /* Owner of a slot that was not granted. */
    NOBODYS = -2,
    /* Owner of a slot with a packet that is not among the frames being delivered. */
    OF_NO_FRAME = -1,
};

static struct {
    const uint8_t *config;
    size_t config_len;
    uint64_t clock_ns;
    uint64_t kept_until_ns;
    uint64_t keep_alive_max_ns;
    uint64_t random_state;
    /* The node's own record of each slot's owner: the frame that it was granted for. */
    int granted[PINION_SLOT_COUNT_MAX];
    /* The way of what was granted with it. */
    uint16_t came_by[PINION_SLOT_COUNT_MAX];
    /* Of each way by which the function got a packet, the flags; -1 of the others. */
    int32_t ways[PINION_WAYS_MAX];
    uint32_t next_slot;
    uint16_t flags;
    uint64_t waited_ns;
    /* The function's own slots that are to be returned to it. */
    uint16_t returned[PINION_SLOT_COUNT_MAX];
    size_t returned_count;
    struct pinion_test_verdict verdicts[VERDICTS_MAX];
    size_t verdict_count;
    char *lines[LINES_MAX];
    enum pinion_log_level levels[LINES_MAX];
    size_t line_count;
    /* The message of the function's last panic. */
    char *panic;
    bool is_panicking;
    jmp_buf *panics;
} node = {
    /* A day, the default of a node. */
    .keep_alive_max_ns = UINT64_C(24) * 3600 * 1000000000,
};

void pinion_test_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: this does not hold: %s\n", file, line, what);
    for (size_t i = 0; i < node.line_count; i++)
        fprintf(stderr, "  the function said: %s\n", node.lines[i]);
    exit(1);
}

/* Fails the test for an error for which a node would end the instance. */
static void refuse(const char *what, const struct pinion_descriptor *sent)
{
    fprintf(stderr, "a node would end this function: it sent %s, slot %u, %u bytes at %u, port %u, way %u\n", what, sent->slot, sent->len, sent->offset,
            sent->port, sent->way);
    exit(1);
}

/* --- Called by the function. --------------------------------------------------------------------------------------------------------- */

void pinion_host_log(enum pinion_log_level level, const char *text, size_t len)
{
    if (node.line_count == LINES_MAX)
        return;
    node.levels[node.line_count] = level;
    node.lines[node.line_count++] = strndup(text, len);
}

uint64_t pinion_host_clock(void)
{
    return node.clock_ns - node.clock_ns % PINION_CLOCK_STEP_NS;
}

uint64_t fake_exact_clock_ns(void)
{
    return node.clock_ns;
}

/* As on a node: a time that has passed ends the request, and a later time than the maximum is cut to it. */
uint64_t pinion_host_keep_alive_until(uint64_t until_ns)
{
    const uint64_t now_ns = pinion_host_clock();
    if (until_ns <= now_ns)
        return node.kept_until_ns = 0;
    const uint64_t kept_ns = until_ns - now_ns < node.keep_alive_max_ns ? until_ns : now_ns + node.keep_alive_max_ns;
    return node.kept_until_ns = kept_ns > now_ns ? kept_ns : 0;
}

/* SplitMix64: predictable, which suits tests. */
int32_t pinion_host_random(void *bytes, size_t len)
{
    for (size_t at = 0; at < len; at += 8) {
        node.random_state += 0x9e3779b97f4a7c15;
        uint64_t word = node.random_state;
        word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
        word = (word ^ word >> 27) * 0x94d049bb133111eb;
        word ^= word >> 31;
        memcpy((uint8_t *)bytes + at, &word, len - at < 8 ? len - at : 8);
    }
    return PINION_ERRNO_OK;
}

size_t pinion_host_config(void *bytes, size_t capacity)
{
    const size_t fits = node.config_len < capacity ? node.config_len : capacity;
    if (fits > 0)
        memcpy(bytes, node.config, fits);
    return node.config_len;
}

void pinion_host_yield(void) {}

void pinion_host_panic(const char *text, size_t len)
{
    free(node.panic);
    node.panic = strndup(text, len);
    node.is_panicking = true;
    /* If this is the function's thread, the test must not continue on it. */
    fake_loop_leave_if_inside();
    fake_go_on_panicking();
    abort();
}

void fake_go_on_panicking(void)
{
    if (!node.is_panicking)
        return;
    node.is_panicking = false;
    if (node.panics)
        longjmp(*node.panics, 1);
    fprintf(stderr, "the function panicked: %s\n", node.panic);
    exit(1);
}

/* --- Called by tests. ---------------------------------------------------------------------------------------------------------------- */

bool pinion_test_prepare(const char *config)
{
    return pinion_test_prepare_with(config, strlen(config));
}

bool pinion_test_prepare_with(const void *config, size_t len)
{
    node.config = config;
    node.config_len = len;
    node.next_slot = 0;
    node.returned_count = node.verdict_count = 0;
    for (size_t slot = 0; slot < PINION_SLOT_COUNT_MAX; slot++)
        node.granted[slot] = NOBODYS;
    for (size_t way = 0; way < PINION_WAYS_MAX; way++)
        node.ways[way] = -1;
    memset(pinion_module_.rx, 0, sizeof *pinion_module_.rx);
    memset(pinion_module_.tx, 0, sizeof *pinion_module_.tx);
    memset(pinion_module_.packets, 0, pinion_module_.slot_count * sizeof *pinion_module_.packets);
    fake_state_initialising(true);
    const int32_t status = pinion_prepare();
    fake_state_initialising(false);
    if (status != PINION_INIT_STATUS_READY)
        return false;
    fake_metrics_check();
    node.kept_until_ns = 0;
    pinion_pool_open();
    if (pinion_module_.function.start)
        pinion_module_.function.start();
    if (pinion_module_.function.run)
        fake_loop_start();
    return true;
}

uint64_t pinion_test_kept_until_ns(void)
{
    return node.kept_until_ns > pinion_host_clock() ? node.kept_until_ns : 0;
}

void pinion_test_set_keep_alive_max_ns(uint64_t max_ns)
{
    node.keep_alive_max_ns = max_ns;
}

/* Returns whether the function has finished. */
static bool is_over(void)
{
    return pinion_module_.function.run ? fake_loop_is_over() : pinion_is_finished();
}

/* Returns the function's deadline. */
static uint64_t deadline_ns(void)
{
    return pinion_module_.function.run ? fake_loop_deadline_ns() : pinion_wake_time();
}

/* Runs the function on the published descriptors. Returns how many are left. */
static uint32_t handle(uint32_t fresh)
{
    return pinion_module_.function.run ? fake_loop_turn(fresh) : pinion_serve(fresh);
}

/* Runs the function when its deadline has come. */
static void expire(uint32_t returned)
{
    if (!pinion_module_.function.run || returned > 0)
        handle(returned);
    /* The returned slots are reported first. */
    if (pinion_module_.function.run && !is_over() && deadline_ns() <= pinion_host_clock())
        handle(0);
}

static uint32_t lent_count(void)
{
    return pinion_module_.slot_count - pinion_module_.function.own_slots;
}

static struct pinion_descriptor *entry(struct pinion_ring_header *ring, uint32_t index)
{
    return (struct pinion_descriptor *)(ring + 1) + (index & (pinion_module_.slot_count - 1));
}

static void publish(struct pinion_descriptor descriptor)
{
    *entry(pinion_module_.rx, pinion_module_.rx->tail++) = descriptor;
}

/* Searches the slots in turn, so that a test uses every slot. Returns the number of slots if none is free. */
static uint32_t free_slot(void)
{
    for (uint32_t step = 0; step < lent_count(); step++) {
        const uint32_t slot = (node.next_slot + step) % lent_count();
        if (node.granted[slot] == NOBODYS)
            return slot;
    }
    return lent_count();
}

/* Publishes a frame if a slot is free. */
static bool grant(uint16_t port, const struct pinion_test_frame *frame, int number)
{
    const uint32_t slot = free_slot();
    if (slot == lent_count())
        return false;
    if (frame->len > PINION_PACKET_BYTES_MAX)
        pinion_test_fail(__FILE__, __LINE__, "each frame fits into a slot");
    if (port >= PINION_WAYS_MAX / 2)
        pinion_test_fail(__FILE__, __LINE__, "no node has a port of this index");
    const uint16_t way = (uint16_t)(port << 1 | !!(node.flags & PINION_RX_BACKWARD));
    const uint64_t now_ns = pinion_host_clock();
    node.came_by[slot] = way;
    node.ways[way] = node.flags;
    node.next_slot = slot + 1;
    node.granted[slot] = number;
    if (frame->len > 0)
        memcpy(pinion_module_.slots[slot] + PINION_RX_HEADROOM, frame->bytes, frame->len);
    publish((struct pinion_descriptor){
        .slot = (uint16_t)slot,
        .offset = PINION_RX_HEADROOM,
        .len = (uint16_t)frame->len,
        .port = port,
        .flags = node.flags,
        .way = way,
        .arrived = (uint32_t)((now_ns > node.waited_ns ? now_ns - node.waited_ns : 0) / 1000),
    });
    return true;
}

static uint32_t publish_returned(void)
{
    const size_t count = node.returned_count;
    for (size_t i = 0; i < count; i++)
        publish((struct pinion_descriptor){.slot = node.returned[i]});
    node.returned_count = 0;
    return (uint32_t)count;
}

/* Takes a slot back. Returns the frame that it was granted for. */
static int take_back(const struct pinion_descriptor *sent)
{
    if (sent->slot >= pinion_module_.slot_count)
        refuse("a slot that does not exist", sent);
    if (sent->slot >= lent_count()) {
        for (size_t i = 0; i < node.returned_count; i++)
            if (node.returned[i] == sent->slot)
                refuse("a slot of its own twice", sent);
        if (sent->way >= PINION_WAYS_MAX || node.ways[sent->way] < 0)
            refuse("a packet that it made by a way by which it got none", sent);
        node.came_by[sent->slot] = sent->way;
        node.returned[node.returned_count++] = sent->slot;
        return OF_NO_FRAME;
    }
    const int frame = node.granted[sent->slot];
    if (frame == NOBODYS)
        refuse("a slot that it does not own", sent);
    node.granted[sent->slot] = NOBODYS;
    return frame;
}

static enum pinion_direction direction_of(int32_t flags)
{
    if (flags & PINION_RX_BACKWARD)
        return PINION_DIRECTION_BACKWARD;
    return flags & PINION_RX_FORWARD ? PINION_DIRECTION_FORWARD : PINION_DIRECTION_NONE;
}

static void collect(void)
{
    for (struct pinion_ring_header *tx = pinion_module_.tx; tx->head != tx->tail; tx->head++) {
        const struct pinion_descriptor *sent = entry(tx, tx->head);
        if (node.verdict_count == VERDICTS_MAX)
            pinion_test_fail(__FILE__, __LINE__, "there is room for all verdicts of one call");
        struct pinion_test_verdict *verdict = &node.verdicts[node.verdict_count++];
        verdict->frame = take_back(sent);
        if (sent->offset + sent->len > (int)PINION_SLOT_SIZE)
            refuse("bytes outside its slot", sent);
        verdict->output = 0;
        const uint16_t way = node.came_by[sent->slot];
        verdict->port = way >> 1;
        verdict->completes_checksums = sent->flags & PINION_TX_CHECKSUM;
        verdict->direction = direction_of(node.ways[way]);
        if (sent->port == PINION_PORT_NEXT)
            verdict->outcome = PINION_TEST_SENT;
        else if (sent->port == PINION_PORT_REPLY)
            verdict->outcome = PINION_TEST_REPLIED;
        else if (sent->port == PINION_PORT_DROP)
            verdict->outcome = PINION_TEST_DROPPED;
        else if (sent->port < PINION_OUTPUTS_MAX)
            verdict->outcome = PINION_TEST_SENT_TO, verdict->output = sent->port;
        else
            refuse("by an output that no stage has", sent);
        verdict->len = sent->len;
        memcpy(verdict->bytes, pinion_module_.slots[sent->slot] + sent->offset, sent->len);
    }
}

/* Marks packets held from before as not among the frames of this call. */
static void forget_frames(void)
{
    node.verdict_count = 0;
    for (uint32_t slot = 0; slot < lent_count(); slot++)
        if (node.granted[slot] >= 0)
            node.granted[slot] = OF_NO_FRAME;
}

size_t pinion_test_deliver(uint16_t port, const struct pinion_test_frame *frames, size_t count)
{
    forget_frames();
    size_t number = 0;
    while (number < count && !is_over()) {
        const uint32_t returned = publish_returned();
        uint32_t fresh = 0;
        while (number < count && grant(port, &frames[number], (int)number))
            number++, fresh++;
        if (fresh == 0)
            pinion_test_fail(__FILE__, __LINE__, "the function does not hold all of its slots");
        const uint32_t left = handle(returned + fresh);
        collect();
        number -= left < fresh ? left : fresh;
    }
    for (; number < count && node.verdict_count < VERDICTS_MAX; number++)
        node.verdicts[node.verdict_count++] = (struct pinion_test_verdict){.frame = (int)number, .outcome = PINION_TEST_GONE};
    return node.verdict_count;
}

struct pinion_test_verdict pinion_test_deliver_one(const void *frame, size_t len)
{
    pinion_test_deliver(0, &(struct pinion_test_frame){frame, len}, 1);
    for (size_t i = 0; i < node.verdict_count; i++)
        if (node.verdicts[i].frame == 0)
            return node.verdicts[i];
    return (struct pinion_test_verdict){.outcome = PINION_TEST_HELD};
}

const char *pinion_test_call(const char *payload)
{
    static const char token[] = "a token!";
    static char answer[PINION_MESSAGE_PAYLOAD_BYTES_MAX + 1];
    uint8_t frame[PINION_MESSAGE_HEADER_BYTES + PINION_MESSAGE_PAYLOAD_BYTES_MAX] = {0};
    const size_t len = strlen(payload);
    PINION_CHECK(len <= PINION_MESSAGE_PAYLOAD_BYTES_MAX);
    pinion_store16(frame + 12, PINION_MESSAGE_ETHERTYPE);
    frame[PINION_MESSAGE_VERSION_AT] = PINION_MESSAGE_VERSION;
    memcpy(frame + PINION_MESSAGE_TOKEN_AT, token, sizeof token - 1);
    memcpy(frame + PINION_MESSAGE_HEADER_BYTES, payload, len);
    const struct pinion_test_verdict verdict = pinion_test_deliver_one(frame, PINION_MESSAGE_HEADER_BYTES + len);
    if (verdict.outcome != PINION_TEST_REPLIED)
        return NULL;
    /* A node would ignore the answer to another message, and one that is too long, and the caller would keep waiting. */
    PINION_CHECK(verdict.len >= PINION_MESSAGE_HEADER_BYTES && verdict.len <= sizeof frame);
    PINION_CHECK(memcmp(verdict.bytes + PINION_MESSAGE_TOKEN_AT, token, sizeof token - 1) == 0);
    const size_t answered = verdict.len - PINION_MESSAGE_HEADER_BYTES;
    memcpy(answer, verdict.bytes + PINION_MESSAGE_HEADER_BYTES, answered);
    answer[answered] = 0;
    return answer;
}

void pinion_test_deliver_checked(uint16_t flags)
{
    node.flags = flags;
}

void pinion_test_deliver_late(uint64_t waited_ns)
{
    node.waited_ns = waited_ns;
}

size_t pinion_test_let_pass_ns(uint64_t duration_ns)
{
    const uint64_t until_ns = node.clock_ns + duration_ns;
    forget_frames();
    while (!is_over() && deadline_ns() != PINION_NEVER) {
        /* A deadline that has already passed is due in the clock's next step. */
        const uint64_t next_step_ns = pinion_host_clock() + PINION_CLOCK_STEP_NS;
        uint64_t due_ns = deadline_ns();
        if (due_ns > until_ns)
            break;
        due_ns += (PINION_CLOCK_STEP_NS - due_ns % PINION_CLOCK_STEP_NS) % PINION_CLOCK_STEP_NS;
        due_ns = due_ns < next_step_ns ? next_step_ns : due_ns;
        if (due_ns > until_ns)
            break;
        node.clock_ns = due_ns;
        expire(publish_returned());
        collect();
    }
    node.clock_ns = until_ns;
    return node.verdict_count;
}

const struct pinion_test_verdict *pinion_test_verdict(size_t number)
{
    if (number >= node.verdict_count)
        pinion_test_fail(__FILE__, __LINE__, "there is a verdict of that number");
    return &node.verdicts[number];
}

bool pinion_test_finished(void)
{
    return is_over();
}

const char *pinion_test_log(size_t number)
{
    return number < node.line_count ? node.lines[number] : NULL;
}

enum pinion_log_level pinion_test_log_level(size_t number)
{
    PINION_CHECK(number < node.line_count);
    return node.levels[number];
}

const char *pinion_test_last_log(void)
{
    return node.line_count > 0 ? node.lines[node.line_count - 1] : "";
}

const char *pinion_test_panic(void (*body)(void))
{
    jmp_buf panics;
    node.panics = &panics;
    const bool panicked = setjmp(panics) != 0;
    if (!panicked)
        body();
    node.panics = NULL;
    /* If the panic was in `init`, the initialisation has ended as well. */
    fake_state_initialising(false);
    return panicked ? node.panic : NULL;
}

/* --- The program. -------------------------------------------------------------------------------------------------------------------- */

/* Copies the name with this index from a list with commas. */
static void name_of(const char *names, size_t number, char name[NAME_BYTES_MAX])
{
    for (; number > 0; number--)
        names = strchr(names, ',') + 1;
    names += strspn(names, " \n\t");
    snprintf(name, NAME_BYTES_MAX, "%.*s", (int)strcspn(names, ", "), names);
}

static bool passes(void (*test)(void))
{
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) {
        test();
        /* _exit skips the leak check: a module's memory goes with its instance. */
        fflush(NULL);
        _exit(0);
    }
    int status;
    return process > 0 && waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int pinion_test_main_(const char *names, void (*const *tests)(void), size_t count)
{
    size_t failed = 0;
    for (size_t number = 0; number < count; number++) {
        char name[NAME_BYTES_MAX];
        name_of(names, number, name);
        const bool passed = passes(tests[number]);
        printf("%s ... %s\n", name, passed ? "ok" : "FAILED");
        failed += !passed;
    }
    printf("%zu passed, %zu failed\n", count - failed, failed);
    return failed > 0;
}
