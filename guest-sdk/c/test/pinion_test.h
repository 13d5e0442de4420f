/* A fake node, so that tests of a function need neither WebAssembly nor Pinion: `make test` of a Makefile that includes pinion.mk.
 *
 *     #include <pinion_test.h>
 *
 *     static void frames_that_are_long_enough_pass(void)
 *     {
 *         static const uint8_t frame[60];
 *         PINION_CHECK(pinion_test_prepare(""));
 *         PINION_CHECK(pinion_test_deliver_one(frame, 60).outcome == PINION_TEST_SENT);
 *         PINION_CHECK(pinion_test_deliver_one(frame, 59).outcome == PINION_TEST_DROPPED);
 *     }
 *
 *     PINION_TESTS(frames_that_are_long_enough_pass)
 *
 * It drives the same pool, rings and batches as a node does, and checks what the function hands back as a node would: what a node would end
 * the instance for fails the test. Each test is a process of its own, so that the function's variables are as new in each. Clock
 * and random bytes are the same in each run. */
#ifndef PINION_TEST_H
#define PINION_TEST_H

#include <pinion.h>

/** What the function did with a packet. */
enum pinion_test_outcome {
    /** Nothing as yet: it holds it. */
    PINION_TEST_HELD,
    /** Sent it on, by the first output. */
    PINION_TEST_SENT,
    /** Sent it on by another output: `output`. */
    PINION_TEST_SENT_TO,
    /** Sent it back out of the port that it came in by. */
    PINION_TEST_REPLIED,
    /** Dropped it, or said nothing. */
    PINION_TEST_DROPPED,
    /** Nothing: it had finished before. */
    PINION_TEST_GONE,
};

/** What became of one packet. */
struct pinion_test_verdict {
    /** Which it was of the frames that were delivered together with it; -1 if the function has made it, or held it from before. */
    int frame;
    enum pinion_test_outcome outcome;
    /** That of PINION_TEST_SENT_TO. */
    uint16_t output;
    /** The frame as it was left. */
    size_t len;
    uint8_t bytes[PINION_SLOT_SIZE];
};

/** A frame to be delivered. */
struct pinion_test_frame {
    const void *bytes;
    size_t len;
};

/** Prepares and starts the function, as a node does, and runs it to its first wait if it is a loop of its own, with a
 *  configuration of text. False if it refuses that: the log says why. */
bool pinion_test_prepare(const char *config);
/** The same with a configuration of any bytes. */
bool pinion_test_prepare_with(const void *config, size_t len);

/** Delivers frames from a port. How many verdicts there are: see pinion_test_verdict. */
size_t pinion_test_deliver(uint16_t port, const struct pinion_test_frame *frames, size_t count);
/** Delivers one frame from port 0; what became of it. What has become of others is to be asked for by pinion_test_verdict. */
struct pinion_test_verdict pinion_test_deliver_one(const void *frame, size_t len);
/** Calls the function by its name, with a payload of text: its answer, good until the next call; NULL if it gave none at once. */
const char *pinion_test_call(const char *payload);
/** Has frames that are delivered from now on come with what a device has found out: PINION_RX_IP_CHECKSUM_GOOD and the like. */
void pinion_test_deliver_checked(uint32_t flags);
/** Lets time go by, and the function know of each deadline in it. Time stands still while it is at work. How many verdicts there are. */
size_t pinion_test_let_pass_ns(uint64_t duration_ns);
/** The verdicts of the last call that delivered frames or let time pass, in the order in which the function said them. */
const struct pinion_test_verdict *pinion_test_verdict(size_t number);
/** Whether the function has finished: it gets no more frames. */
bool pinion_test_finished(void);

/** A field of state as a test grants it. What is left out, or zero, is as said. */
struct pinion_test_field {
    const char *name;
    /** The function may only read it. */
    bool read_only;
    /** The longest value, in bytes: PINION_STATE_VALUE_BYTES_MAX. */
    size_t value_bytes;
    /** How many entries find room: 1,000. A node may have room for more. */
    size_t entries;
    /** How long an entry is there after it was written, in milliseconds: for ever. */
    uint64_t ttl_ms;
    /** When there is no room, the entry goes that was not written to for longest. A node lets one go of some of those. */
    bool evicts;
};

/** Grants the function a field. Granted again, to read only say, it has the entries that it had, and so has it for a function that is prepared
 *  anew, as for another instance. */
void pinion_test_grant_state(struct pinion_test_field field);

/** What the metric of this name, with these labels in whatever order, is in this instance. Fails the test if none is shown. */
int64_t pinion_test_metric(const char *name, const struct pinion_label *labels);
/** Whether there is one to be shown. */
bool pinion_test_has_metric(const char *name, const struct pinion_label *labels);

/** The line of that number that the function has logged since the test began, from 0 on; NULL if there are fewer. */
const char *pinion_test_log(size_t number);
/** Its level. */
enum pinion_log_level pinion_test_log_level(size_t number);
/** The latest line; an empty one if there is none. */
const char *pinion_test_last_log(void);
/** Runs `body`; what it panicked with, or NULL if it did not. After a panic the function is to be prepared anew. */
const char *pinion_test_panic(void (*body)(void));

/** Fails the test unless this holds. */
#define PINION_CHECK(condition)                                                                                                          \
    do {                                                                                                                                 \
        if (!(condition))                                                                                                                \
            pinion_test_fail(__FILE__, __LINE__, #condition);                                                                            \
    } while (0)

void pinion_test_fail(const char *file, int line, const char *what) __attribute__((noreturn));


int pinion_test_main_(const char *names, void (*const *tests)(void), size_t count);

/** The program of these tests. */
#define PINION_TESTS(...)                                                                                                                \
    int main(void)                                                                                                                       \
    {                                                                                                                                    \
        static void (*const tests[])(void) = {__VA_ARGS__};                                                                              \
        return pinion_test_main_(#__VA_ARGS__, tests, sizeof tests / sizeof *tests);                                                     \
    }

#endif
