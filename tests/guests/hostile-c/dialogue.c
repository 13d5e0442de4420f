/* A function with a loop of its own: it answers each call with the words of the previous one, and logs a line if no call comes for as many
 * milliseconds as its configuration says. It returns after `end`. */
#include <stdlib.h>
#include <string.h>

#include <pinion.h>

static uint64_t patience_ns;
static char before[64] = "nothing";

static int prepare(const uint8_t *config, size_t len)
{
    (void)len;
    patience_ns = strtoull((const char *)config, NULL, 10) * 1000000;
    return patience_ns > 0 ? 0 : pinion_refuse("\"%s\" is no number of milliseconds", (const char *)config);
}

/* Returns whether that was the last call. */
static bool answer(pinion_packet *packet)
{
    uint8_t *payload;
    size_t len;
    char said[sizeof before];
    if (!pinion_message(packet, &payload, &len))
        return false;
    len = len < sizeof said ? len : sizeof said - 1;
    memcpy(said, payload, len);
    said[len] = 0;
    pinion_answer(packet, before, strlen(before));
    memcpy(before, said, sizeof before);
    return strcmp(said, "end") == 0;
}

static void run(void)
{
    pinion_packet *packets[PINION_BATCH_PACKETS_MAX];
    size_t count = pinion_wait(packets);
    for (;;) {
        for (size_t i = 0; i < count; i++)
            if (answer(packets[i]))
                return;
        count = pinion_wait_until(packets, pinion_now_ns() + patience_ns);
        if (count == 0) {
            pinion_log(PINION_INFO, "no more calls after %s", before);
            count = pinion_wait(packets);
        }
    }
}

PINION_FUNCTION(.init = prepare, .run = run);
