/* A guest in C that does with its first packet what its configuration says, mostly typical faults of C programs. Then, if it still runs, it
 * answers. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pinion.h>

static char word[16];

static int prepare(const uint8_t *config, size_t len)
{
    if (len >= sizeof word)
        return pinion_refuse("%zu bytes are no word of this guest's", len);
    memcpy(word, config, len);
    if (strcmp(word, "quiet") == 0)
        pinion_log_up_to(PINION_WARN);
    return 0;
}

static bool wants(const char *what)
{
    return strcmp(word, what) == 0;
}

/* Writes over the end of its slot, and over all of the next two. */
static void write_past_the_slot(pinion_packet *packet)
{
    volatile uint8_t *frame = pinion_data(packet);
    for (size_t i = pinion_len(packet); i < 3 * PINION_SLOT_SIZE; i++)
        frame[i] = 0xff;
}

/* Writes over all of its memory, the library's included, and past its end. */
static void write_past_memory(pinion_packet *packet)
{
    volatile uint8_t *frame = pinion_data(packet);
    for (size_t i = 0;; i++)
        frame[i] = 0xff;
}

static int descend(volatile char *above)
{
    volatile char here[256];
    here[0] = *above;
    /* Never true, but the compiler cannot know that. */
    if (here[0] == 0)
        return 0;
    return descend(here) + here[0];
}

/* Sends the same slot twice, bypassing the library. */
static void forge(const pinion_packet *packet)
{
    struct pinion_ring_header *tx = pinion_module_.tx;
    struct pinion_descriptor *entries = (struct pinion_descriptor *)(tx + 1);
    for (int i = 0; i < 2; i++) {
        entries[tx->tail % pinion_module_.slot_count] = (struct pinion_descriptor){
            .slot = (uint16_t)(packet - pinion_module_.packets),
            .offset = PINION_RX_HEADROOM,
            .len = 60,
        };
        tx->tail++;
    }
}

static void take_all_memory(void)
{
    size_t kib = 0;
    /* Written to, as the compiler would otherwise remove the allocation. */
    for (volatile char *block; (block = malloc(16 * 1024)); kib += 16)
        block[0] = 1;
    pinion_log(PINION_INFO, "malloc gave NULL after %zu KiB", kib);
}

static void print(void)
{
    printf("one\ntwo, %d\nthree is ", 2);
    fprintf(stderr, "%s, %s and %d are one line, however long it is and of whatever parts\n", "what is written to stderr", "text", 42);
    puts("whole");
    printf("%01500d\n", 7);
}

/* Logs the contents of a file that was deployed with the stage, and the error for one that was not. */
static void read_file(void)
{
    char line[64] = "";
    FILE *file = fopen("/words/greeting.txt", "r"), *none = fopen("/words/none.txt", "r");
    if (file && fgets(line, sizeof line, file) && !none)
        pinion_log(PINION_INFO, "the file says %s", line);
}

static pinion_packet *held;

static void hold(pinion_packet *packet)
{
    pinion_hold(packet);
    held = packet;
    pinion_wake_at(pinion_now_ns() + 5000000);
}

static void expire(void)
{
    pinion_reply(held);
    held = NULL;
}

static void reply_twice(pinion_packet *packet)
{
    pinion_packet *clone = pinion_clone(packet);
    if (clone)
        pinion_reply(clone);
    pinion_reply(packet);
}

static bool answers_call(pinion_packet *packet)
{
    uint8_t *payload;
    size_t len;
    if (!pinion_message(packet, &payload, &len))
        return false;
    for (size_t i = 0; i < len; i++)
        payload[i] = (uint8_t)toupper(payload[i]);
    return pinion_answer(packet, payload, len);
}

/* Draws more random bytes than one turn may. The frequency of each byte value shows whether they are random. */
static void draw_much(void)
{
    const size_t len = 1024 * 1024;
    size_t counts[256] = {0};
    uint8_t *bytes = malloc(len);
    if (!bytes)
        pinion_panic("there is no memory for %zu bytes", len);
    pinion_random(bytes, len);
    for (size_t i = 0; i < len; i++)
        counts[bytes[i]]++;
    for (size_t i = 0; i < 256; i++)
        if (counts[i] < len / 512)
            pinion_panic("of %zu bytes %zu are %zu", len, counts[i], i);
    pinion_log(PINION_INFO, "%zu KiB, and no byte of them is rare", len / 1024);
    free(bytes);
}

static uint64_t key;

static void start(void)
{
    pinion_random(&key, sizeof key);
}

static void handle(pinion_packet *packet)
{
    if (answers_call(packet))
        return;
    if (wants("hold")) {
        if (held)
            pinion_drop(packet);
        else
            hold(packet);
        return;
    }
    if (wants("clone")) {
        reply_twice(packet);
        return;
    }
    if (wants("random"))
        pinion_log(PINION_INFO, "%016llx", (unsigned long long)key);
    if (wants("slot"))
        write_past_the_slot(packet);
    if (wants("memory"))
        write_past_memory(packet);
    if (wants("stack"))
        pinion_log(PINION_INFO, "%d", descend(word));
    if (wants("twice"))
        pinion_send(packet);
    if (wants("after")) {
        pinion_drop(packet);
        pinion_data(packet)[0] = 0;
    }
    if (wants("forge"))
        forge(packet);
    if (wants("malloc"))
        take_all_memory();
    if (wants("print"))
        print();
    if (wants("quiet")) {
        pinion_log(PINION_INFO, "%s", "not loud enough");
        pinion_log(PINION_WARN, "%s", "loud enough");
    }
    if (wants("file"))
        read_file();
    if (wants("flood"))
        draw_much();
    if (wants("panic"))
        pinion_panic("this is not the %d. packet", 2);
    if (wants("abort"))
        abort();
    /* The next packet is only answered. */
    if (!wants("forge"))
        pinion_reply(packet);
    word[0] = 0;
}

PINION_FUNCTION_WITH_SLOTS(64, .init = prepare, .start = start, .packet = handle, .expire = expire, .own_slots = 4);
