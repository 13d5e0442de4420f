/* What the library's files know of each other, and what they need of whoever runs the function: a node, or the fake one of tests. */
#ifndef PINION_INTERNAL_H
#define PINION_INTERNAL_H

#include <pinion.h>

/* Whose a packet's slot is: from PINION_FRESH on it is the function's. */
enum {
    /* The node's. */
    PINION_NODES = 0,
    /* One of the function's own, in which no packet is. */
    PINION_FREE = 1,
    /* The function's, until its callback returns. */
    PINION_FRESH = 2,
    /* The function's, until it says what becomes of it. */
    PINION_KEPT = 3,
};

/* pool.c: as a module begins, and after each wait. */

/* Takes the pool into use, and forgets deadline and finish: what was said before a snapshot was taken would be said by every instance. */
void pinion_pool_open(void);
/* Hands the packets among `fresh` newly published descriptors to the function, and tells it if its time has come, unless it finishes
 * before; how many descriptors are left. */
uint32_t pinion_serve(uint32_t fresh);
/* Makes a batch of the next `count` descriptors, at most as many as one has; how many packets are among them. */
size_t pinion_receive(pinion_packet *packets[PINION_BATCH_PACKETS_MAX], uint32_t count);
/* Drops those of a batch of which nothing was said. */
void pinion_drop_rest(pinion_packet *const *packets, size_t count);
/* When the function wants to be woken. */
uint64_t pinion_wake_time(void);
/* Whether the function has finished. */
bool pinion_is_finished(void);

/* loop.c: runs a function that is a loop of its own, until it returns; how many descriptors it has left. */
uint32_t pinion_loop(void);

/* entry.c: reads the configuration, and has the function prepare itself; an `enum pinion_init_status`. */
int32_t pinion_prepare(void);

/* log.c. */

/* Has stdout and stderr write whole lines. */
void pinion_log_open(void);
/* How many of a text's first `len` bytes to keep, so that its last character is whole. */
size_t pinion_whole_characters(const char *text, size_t len);

/* metrics.c. */

/* A metric as it was declared. */
struct pinion_declared {
    enum pinion_metric_kind kind;
    void *value;
    /* The label that changes; NULL if none does. */
    struct pinion_metric_text *text;
    /* Copies, in one piece of memory, without zeroes at their ends. */
    char *texts;
    const char *name;
    const char *help;
    /* As the contract has them: a line each. */
    const char *labels;
    size_t name_len;
    size_t help_len;
    size_t labels_len;
};

/* Forgets what was declared, and lets the function declare. */
void pinion_metrics_open(void);
/* From here on nothing can be declared. */
void pinion_metrics_close(void);
size_t pinion_metrics_count(void);
const struct pinion_declared *pinion_metric(size_t number);
/* What was declared as the contract has it; in WebAssembly only. */
const struct pinion_metrics_header *pinion_metrics_header(void);

/* host.c, or the fake node. */

void pinion_host_log(enum pinion_log_level level, const char *text, size_t len);
uint64_t pinion_host_clock(void);
/* Waits for packets, or for a time, or PINION_NEVER: the number of new receive descriptors, none if the time has passed. */
uint32_t pinion_host_wait(uint64_t deadline_ns);
/* At most PINION_RANDOM_BYTES_MAX; an `enum pinion_errno`. */
int32_t pinion_host_random(void *bytes, size_t len);
size_t pinion_host_config(void *bytes, size_t capacity);
void pinion_host_yield(void);
/* Ends the instance, and says why. */
void pinion_host_panic(const char *text, size_t len) __attribute__((noreturn));
/* All of these return at least zero, or the negative of an `enum pinion_errno`. */
int32_t pinion_host_state_open(const char *name, size_t len);
int32_t pinion_host_state_get(int32_t field, const void *key, size_t key_len, void *value, size_t capacity);
int32_t pinion_host_state_put(int32_t field, const void *key, size_t key_len, const void *value, size_t len);
/* With PINION_STATE_EXPECT_NONE as `expected_len`, nothing is to be there. */
int32_t pinion_host_state_cas(int32_t field, const void *key, size_t key_len, const void *expected, int32_t expected_len, const void *value,
                              size_t len);
int32_t pinion_host_state_add(int32_t field, const void *key, size_t key_len, int64_t delta, int64_t *sum);
int32_t pinion_host_state_expire(int32_t field, const void *key, size_t key_len, int64_t ttl_ms);
int32_t pinion_host_state_delete(int32_t field, const void *key, size_t key_len);

#endif
