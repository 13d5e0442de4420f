/* A fake node, so that tests of a function need neither WebAssembly nor Pinion: `make test` with a Makefile that includes pinion.mk.
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
 * It drives the same pool, rings and batches as a node, and checks the function's transmit descriptors as a node would: where a node
 * would end the instance, the test fails. Each test is a process of its own, so that the function's variables are new in each. Clock and
 * random bytes are the same in each run. */
#ifndef PINION_TEST_H
#define PINION_TEST_H

#include <pinion.h>

/** What the function did with a packet. */
enum pinion_test_outcome {
    /** The function holds the packet. */
    PINION_TEST_HELD,
    /** The function sent it by the first output. */
    PINION_TEST_SENT,
    /** The function sent it by another output: `output`. */
    PINION_TEST_SENT_TO,
    /** The function sent it back out of its ingress port. */
    PINION_TEST_REPLIED,
    /** The function dropped it, or its callback returned without a decision. */
    PINION_TEST_DROPPED,
    /** The function had finished before. */
    PINION_TEST_GONE,
};

/** The result for one packet. */
struct pinion_test_verdict {
    /** The frame's index among those delivered together; -1 if the function made the packet, or held it from before. */
    int frame;
    enum pinion_test_outcome outcome;
    /** The output of PINION_TEST_SENT_TO. */
    uint16_t output;
    /** The port of its way: the ingress port of its frame, or of the packet whose way a made packet was given. A reply leaves by it. */
    uint16_t port;
    /** The direction of its way. */
    enum pinion_direction direction;
    /** A node would complete its checksums: pinion_complete_checksums. Here they are as the function left them. */
    bool completes_checksums;
    /** The frame as the function left it. */
    size_t len;
    uint8_t bytes[PINION_SLOT_SIZE];
};

/** A frame to be delivered. */
struct pinion_test_frame {
    const void *bytes;
    size_t len;
};

/** Prepares and starts the function as a node does, with a configuration of text. If it has a loop of its own, runs it to its first
 *  wait. Returns false if the function refuses the configuration; the log says why. */
bool pinion_test_prepare(const char *config);
/** Does the same with a configuration of any bytes. */
bool pinion_test_prepare_with(const void *config, size_t len);

/** Delivers frames from a port. Returns the number of verdicts, which pinion_test_verdict returns. */
size_t pinion_test_deliver(uint16_t port, const struct pinion_test_frame *frames, size_t count);
/** Delivers one frame from port 0 and returns its verdict. pinion_test_verdict returns those of other packets. */
struct pinion_test_verdict pinion_test_deliver_one(const void *frame, size_t len);
/** Sends the function a message with a payload of text. Returns its answer, which is valid until the next call, or NULL if it gave none
 *  at once. */
const char *pinion_test_call(const char *payload);
/** Sets the flags of all frames that are delivered from now on: the device's checksum results, PINION_RX_IP_CHECKSUM_GOOD and the like,
 *  and the direction, PINION_RX_FORWARD or PINION_RX_BACKWARD. */
void pinion_test_deliver_checked(uint16_t flags);
/** Sets how long all frames that are delivered from now on have waited since they came, in nanoseconds. */
void pinion_test_deliver_late(uint64_t waited_ns);
/** Lets time pass, and calls the function at each deadline within it. Time stands still while the function runs. Returns the number of
 *  verdicts. */
size_t pinion_test_let_pass_ns(uint64_t duration_ns);
/** Returns a verdict of the last call that delivered frames or let time pass, in the order of the function's decisions. */
const struct pinion_test_verdict *pinion_test_verdict(size_t number);
/** Returns whether the function has finished: it gets no more frames. */
bool pinion_test_finished(void);

/** Returns the time until which the function is kept alive, as granted; 0 if it has not asked, or the time has passed. */
uint64_t pinion_test_kept_until_ns(void);
/** Sets the operator's limit on keeping functions alive; by default a day. */
void pinion_test_set_keep_alive_max_ns(uint64_t max_ns);

/** A field of state as a test grants it. A member that is left out, or zero, has the default given here. */
struct pinion_test_field {
    const char *name;
    /** The function may only read it. */
    bool read_only;
    /** The longest value, in bytes; by default PINION_STATE_VALUE_BYTES_MAX. */
    size_t value_bytes;
    /** The most entries; by default 1,000. A node may have room for more. */
    size_t entries;
    /** The time to live of an entry after it was written, in milliseconds; by default without limit. */
    uint64_t ttl_ms;
    /** When the field is full, evicts the entry that was written longest ago. A node evicts the oldest of a few entries only. */
    bool evicts;
};

/** Grants the function a field. A field that is granted again, read-only for example, keeps its entries. It also keeps them when the
 *  function is prepared again, which stands for another instance. */
void pinion_test_grant_state(struct pinion_test_field field);

/** Some bytes. */
struct pinion_test_bytes {
    const void *data;
    size_t len;
};

/** A model as a test replaces it. */
struct pinion_test_model {
    const char *name;
    /** Makes the model's only output of its inputs, at most `capacity` bytes; returns false if the run fails. */
    bool (*run)(const struct pinion_test_bytes *inputs, void *output, size_t capacity, size_t *len);
};

/** Grants the function a model. One of the same name is replaced. */
void pinion_test_grant_model(struct pinion_test_model model);

/** Returns this instance's value of the metric with this name and these labels, in any order. Fails the test if no such metric is shown. */
int64_t pinion_test_metric(const char *name, const struct pinion_label *labels);
/** Returns whether such a metric is shown. */
bool pinion_test_has_metric(const char *name, const struct pinion_label *labels);

/** Returns a line that the function has logged since the test began, counted from 0; NULL if there are fewer. */
const char *pinion_test_log(size_t number);
/** Returns the level of that line. */
enum pinion_log_level pinion_test_log_level(size_t number);
/** Returns the latest line, or an empty one if there is none. */
const char *pinion_test_last_log(void);
/** Runs `body`. Returns its panic's message, or NULL if it did not panic. After a panic the function must be prepared again. */
const char *pinion_test_panic(void (*body)(void));

/** Fails the test unless the condition holds. */
#define PINION_CHECK(condition)                                                                                                          \
    do {                                                                                                                                 \
        if (!(condition))                                                                                                                \
            pinion_test_fail(__FILE__, __LINE__, #condition);                                                                            \
    } while (0)

void pinion_test_fail(const char *file, int line, const char *what) __attribute__((noreturn));


int pinion_test_main_(const char *names, void (*const *tests)(void), size_t count);

/** Defines the test program, which runs these tests. */
#define PINION_TESTS(...)                                                                                                                \
    int main(void)                                                                                                                       \
    {                                                                                                                                    \
        static void (*const tests[])(void) = {__VA_ARGS__};                                                                              \
        return pinion_test_main_(#__VA_ARGS__, tests, sizeof tests / sizeof *tests);                                                     \
    }

#endif
