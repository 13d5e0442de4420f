/* Declarations that the library's files share, and the calls that they need from a node or from the fake node of tests. */
#ifndef PINION_INTERNAL_H
#define PINION_INTERNAL_H

#include <pinion.h>

/* Owner of a packet's slot: from PINION_FRESH on it is the function. */
enum {
    /* The node owns the slot. */
    PINION_NODES = 0,
    /* One of the function's own slots, without a packet. */
    PINION_FREE = 1,
    /* The function owns the packet until its callback returns. */
    PINION_FRESH = 2,
    /* The function owns the packet until it sends or drops it. */
    PINION_KEPT = 3,
};

/* pool.c, or net/frames.c: where packets lie. */

/* Returns the number of a packet's slot. */
uint32_t pinion_slot_of(const pinion_packet *packet);
/* Gives a packet of the function's to the node, by an output or as PINION_PORT_REPLY and PINION_PORT_DROP say. Called once per packet: from
 * here on the node owns the slot. */
void pinion_give_back(pinion_packet *packet, uint16_t port);
/* Takes one of the function's own slots for a packet that goes this way, with neither offset nor length yet. Returns NULL if all of them are
 * in use. */
pinion_packet *pinion_take_own(pinion_way way);

/* pool.c: called when a module starts, and after each wait. */

/* Initialises the pool and clears deadline and finish, as requests from before the snapshot would count in every instance. */
void pinion_pool_open(void);
/* Hands the packets among `fresh` newly published descriptors to the function, and calls `expire` if its time has come, unless the
 * function finishes before that. Returns how many descriptors are left. */
uint32_t pinion_serve(uint32_t fresh);
/* Makes a batch of the next `count` descriptors, at most PINION_BATCH_PACKETS_MAX. Returns how many packets are among them. */
size_t pinion_receive(pinion_packet *packets[PINION_BATCH_PACKETS_MAX], uint32_t count);
/* Drops the packets of a batch that were neither sent nor held. */
void pinion_drop_rest(pinion_packet *const *packets, size_t count);
/* Returns the time of the function's pinion_wake_at. */
uint64_t pinion_wake_time(void);
/* Returns whether the function has called pinion_finish. */
bool pinion_is_finished(void);

/* loop.c: runs a function with a loop of its own until it returns. Returns how many descriptors it has left. */
uint32_t pinion_loop(void);

/* entry.c: reads the configuration and calls the function's `init`. Returns an `enum pinion_init_status`. */
int32_t pinion_prepare(void);

/* config.c: returns the configuration, followed by a zero that is not counted in the length. Returns NULL, after it has refused it, if there
 * is no memory. */
uint8_t *pinion_read_config(size_t *len);

/* log.c. */

/* Sets stdout and stderr to write whole lines. */
void pinion_log_open(void);
/* Returns how many of a text's first `len` bytes to keep, so that its last character is whole. */
size_t pinion_whole_characters(const char *text, size_t len);

/* metrics.c. */

/* A declared metric. */
struct pinion_declared {
    enum pinion_metric_kind kind;
    void *value;
    /* The label that changes; NULL if none does. */
    struct pinion_metric_text *text;
    /* Copies of the texts, in one block of memory, without terminating zeroes. */
    char *texts;
    const char *name;
    const char *help;
    /* In the contract's format: one per line. */
    const char *labels;
    size_t name_len;
    size_t help_len;
    size_t labels_len;
};

/* Clears the declarations, and allows the function to declare. */
void pinion_metrics_open(void);
/* Ends the time in which metrics can be declared. */
void pinion_metrics_close(void);
size_t pinion_metrics_count(void);
const struct pinion_declared *pinion_metric(size_t number);
/* Returns the declared metrics in the contract's layout; in WebAssembly only. */
const struct pinion_metrics_header *pinion_metrics_header(void);

/* host.c, or the fake node. */

void pinion_host_log(enum pinion_log_level level, const char *text, size_t len);
uint64_t pinion_host_clock(void);
uint64_t pinion_host_keep_alive_until(uint64_t until_ns);
/* Waits for packets until a time, or without a limit for PINION_NEVER. Returns the number of new receive descriptors, zero if the time
 * has passed. */
uint32_t pinion_host_wait(uint64_t deadline_ns);
/* Fills at most PINION_RANDOM_BYTES_MAX bytes. Returns an `enum pinion_errno`. */
int32_t pinion_host_random(void *bytes, size_t len);
size_t pinion_host_config(void *bytes, size_t capacity);
void pinion_host_yield(void);
/* Ends the instance with this reason. */
void pinion_host_panic(const char *text, size_t len) __attribute__((noreturn));
/* All of these return zero or more, or the negative of an `enum pinion_errno`. */
int32_t pinion_host_state_open(const char *name, size_t len);
int32_t pinion_host_state_get(int32_t field, const void *key, size_t key_len, void *value, size_t capacity);
int32_t pinion_host_state_put(int32_t field, const void *key, size_t key_len, const void *value, size_t len);
/* With PINION_STATE_EXPECT_NONE as `expected_len`, no entry may exist. */
int32_t pinion_host_state_cas(int32_t field, const void *key, size_t key_len, const void *expected, int32_t expected_len, const void *value,
                              size_t len);
int32_t pinion_host_state_add(int32_t field, const void *key, size_t key_len, int64_t delta, int64_t *sum);
int32_t pinion_host_state_expire(int32_t field, const void *key, size_t key_len, int64_t ttl_ms);
int32_t pinion_host_state_delete(int32_t field, const void *key, size_t key_len);
/* All of these return a number of wasi-nn's errors, of which `enum pinion_nn` names some. */
int32_t pinion_host_nn_load_by_name(const char *name, size_t len, uint32_t *graph);
int32_t pinion_host_nn_init_execution_context(uint32_t graph, uint32_t *context);
int32_t pinion_host_nn_set_input(uint32_t context, uint32_t index, const struct pinion_tensor *tensor);
int32_t pinion_host_nn_compute(uint32_t context);
int32_t pinion_host_nn_get_output(uint32_t context, uint32_t index, void *data, size_t capacity, uint32_t *size);

#endif
