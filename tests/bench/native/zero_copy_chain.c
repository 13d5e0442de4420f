/*
 * A chain of native functions that share packets instead of copying them, on two cores, as OpenNetVM runs functions that share a core. This
 * is the fastest design without any isolation between functions.
 *
 *   manager, first core                                functions, one OS thread each, all on the second core
 *
 *   rx burst --> [in 0] ----------------------------->  function 0: swaps addresses in place
 *            .-- [out 0] <----------------------------  (sleeps on a futex when it has no packets)
 *            '-> [in 1] ----------------------------->  function 1
 *   tx burst <-- [out 1] <----------------------------
 *
 * Only pointers to packets are passed. The manager wakes a sleeping function when there are packets for it, as OpenNetVM does. Unlike
 * OpenNetVM it never drops: a full ring applies backpressure up to the device, so that no work is spent on packets that are dropped later.
 * This is to the pipeline's advantage.
 *
 * Prints one JSON object; ends with 1 if a packet was lost or came out with the wrong addresses, 2 if it could not run.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>
#include <rte_prefetch.h>
#include <rte_ring.h>

/* As many as in a chain of Pinion. */
#define FUNCTIONS_MAX 16
/*
 * Packets at a time, entries of each ring, and packets that wait before a sleeping function is woken. OpenNetVM has 32, 16384 and 1. These
 * values are faster: longer bursts touch the rings' shared indices less often, shorter rings keep packets in the cache, and a function that
 * is woken for many packets at once costs fewer system calls on either core.
 */
#define BURST 64
#define RING_PLACES 4096
#define WAKE_PACKETS 1024
/* Fewer packets than that wait no longer than so many rounds of the manager. */
#define WAKE_ROUNDS 100
/* Buffers that the caches of mempool and device hold beside the rings. */
#define BUFFERS_SPARE 1024
#define BUFFER_CACHE 256

enum { AWAKE, ASLEEP };

struct function {
	struct rte_ring *in;
	struct rte_ring *out;
	pthread_t thread;
	/* AWAKE or ASLEEP; the function sleeps on it. */
	_Alignas(RTE_CACHE_LINE_SIZE) _Atomic uint32_t state;
	/* Written only by the manager: its rounds since it first saw the function asleep with too few packets to wake it. */
	_Alignas(RTE_CACHE_LINE_SIZE) uint32_t rounds_waited;
	/* Written only by the function. */
	_Alignas(RTE_CACHE_LINE_SIZE) uint64_t handled;
	uint64_t sleeps;
};

static struct function functions[FUNCTIONS_MAX];
static unsigned int function_count;
static unsigned int function_core;
static atomic_bool stopping;

static void __rte_noreturn die(const char *what, const char *why)
{
	fprintf(stderr, "zero-copy chain: %s: %s\n", what, why);
	exit(2);
}

static void pin(unsigned int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0)
		die("pinning a thread", "the core may not be used");
}

/* ---- functions ---- */

static bool has_work(const struct function *f)
{
	return !rte_ring_empty(f->in) && rte_ring_free_count(f->out) >= BURST;
}

static void futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
	syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Sets the state to ASLEEP before the last check of the ring: either the function sees the packet, or the manager sees that it sleeps. */
static void sleep_until_woken(struct function *f)
{
	atomic_store(&f->state, ASLEEP);
	if (!has_work(f) && !atomic_load(&stopping)) {
		f->sleeps++;
		while (atomic_load_explicit(&f->state, memory_order_acquire) == ASLEEP)
			futex(&f->state, FUTEX_WAIT, ASLEEP);
		return;
	}
	atomic_store_explicit(&f->state, AWAKE, memory_order_relaxed);
}

static void wake(struct function *f)
{
	atomic_store_explicit(&f->state, AWAKE, memory_order_release);
	futex(&f->state, FUTEX_WAKE, 1);
}

static inline void swap_addresses(struct rte_mbuf *packet)
{
	struct rte_ether_hdr *header = rte_pktmbuf_mtod(packet, struct rte_ether_hdr *);
	struct rte_ether_addr destination = header->dst_addr;

	header->dst_addr = header->src_addr;
	header->src_addr = destination;
}

static void *run_function(void *argument)
{
	struct function *f = argument;
	struct rte_mbuf *packets[BURST];

	pin(function_core);
	while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
		unsigned int count = 0;

		if (likely(rte_ring_free_count(f->out) >= BURST))
			count = rte_ring_sc_dequeue_burst(f->in, (void **)packets, BURST, NULL);
		if (unlikely(count == 0)) {
			sleep_until_woken(f);
			continue;
		}
		/* Both cache lines of a packet come from the manager's core, so all are prefetched before the first is used. */
		for (unsigned int i = 0; i < count; i++)
			rte_prefetch0(packets[i]);
		for (unsigned int i = 0; i < count; i++)
			__builtin_prefetch(rte_pktmbuf_mtod(packets[i], void *), 1);
		for (unsigned int i = 0; i < count; i++)
			swap_addresses(packets[i]);
		/* There was room, and no other thread fills this ring. */
		rte_ring_sp_enqueue_bulk(f->out, (void **)packets, count, NULL);
		f->handled += count;
	}
	return NULL;
}

/* ---- manager ---- */

struct traffic {
	uint64_t received;
	uint64_t sent;
	uint64_t wrong;
	uint64_t wakes;
	struct rte_ether_addr station;
	bool checked;
};

/* Passes on as many as there are and fit; the rest stays in its ring. */
static void pass_on(struct rte_ring *from, struct rte_ring *to)
{
	struct rte_mbuf *packets[BURST];
	unsigned int room = rte_ring_free_count(to);
	unsigned int count = rte_ring_sc_dequeue_burst(from, (void **)packets, RTE_MIN(room, (unsigned int)BURST), NULL);

	if (count > 0)
		rte_ring_sp_enqueue_bulk(to, (void **)packets, count, NULL);
}

/* All packets came to the station's address, which after an odd number of swaps is the source, and otherwise the destination. */
static bool came_out_right(struct rte_mbuf *packet, const struct rte_ether_addr *station)
{
	const struct rte_ether_hdr *header = rte_pktmbuf_mtod(packet, const struct rte_ether_hdr *);

	return rte_is_same_ether_addr(function_count % 2 ? &header->src_addr : &header->dst_addr, station);
}

static void transmit(uint16_t port, struct rte_ring *from, struct traffic *traffic)
{
	struct rte_mbuf *packets[BURST];
	unsigned int count = rte_ring_sc_dequeue_burst(from, (void **)packets, BURST, NULL);
	unsigned int sent = 0;

	if (count == 0)
		return;
	/* Not during the timed part, as the check must not cost what it guards. */
	for (unsigned int i = 0; traffic->checked && i < count; i++)
		traffic->wrong += !came_out_right(packets[i], &traffic->station);
	while (sent < count)
		sent += rte_eth_tx_burst(port, 0, packets + sent, count - sent);
	traffic->sent += sent;
}

static void receive(uint16_t port, struct rte_ring *to, struct traffic *traffic)
{
	struct rte_mbuf *packets[BURST];
	uint16_t count;

	if (rte_ring_free_count(to) < BURST)
		return;
	count = rte_eth_rx_burst(port, 0, packets, BURST);
	if (count > 0)
		rte_ring_sp_enqueue_bulk(to, (void **)packets, count, NULL);
	traffic->received += count;
}

static void wake_whoever_has_work(struct traffic *traffic)
{
	/* The store of a ring's tail and the load of the state must not be reordered: see sleep_until_woken(). */
	atomic_thread_fence(memory_order_seq_cst);
	for (unsigned int i = 0; i < function_count; i++) {
		struct function *f = &functions[i];

		if (atomic_load_explicit(&f->state, memory_order_relaxed) != ASLEEP || !has_work(f))
			continue;
		if (rte_ring_count(f->in) >= WAKE_PACKETS || ++f->rounds_waited > WAKE_ROUNDS) {
			f->rounds_waited = 0;
			wake(f);
			traffic->wakes++;
		}
	}
}

/* One round, from the end of the chain to its start, so that packets that leave make room for those that come. */
static void manage(uint16_t port, struct traffic *traffic, bool accept)
{
	transmit(port, functions[function_count - 1].out, traffic);
	for (unsigned int i = function_count - 1; i > 0; i--)
		pass_on(functions[i - 1].out, functions[i].in);
	if (accept)
		receive(port, functions[0].in, traffic);
	wake_whoever_has_work(traffic);
}

static void manage_for(uint16_t port, struct traffic *traffic, uint64_t cycles)
{
	uint64_t start = rte_rdtsc();

	while (rte_rdtsc() - start < cycles)
		manage(port, traffic, true);
}

/* Accepts no packets until all in flight have left, or a second has passed. */
static void drain(uint16_t port, struct traffic *traffic)
{
	uint64_t start = rte_rdtsc();

	while (traffic->sent < traffic->received && rte_rdtsc() - start < rte_get_tsc_hz())
		manage(port, traffic, false);
}

/* ---- setting up ---- */

static struct rte_ring *new_ring(const char *role, unsigned int number)
{
	char name[32];
	struct rte_ring *ring;

	snprintf(name, sizeof(name), "%s%u", role, number);
	ring = rte_ring_create(name, RING_PLACES, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
	if (ring == NULL)
		die("making a ring", rte_strerror(rte_errno));
	return ring;
}

static void open_port(uint16_t port, struct rte_mempool *pool)
{
	struct rte_eth_conf settings = { 0 };

	if (rte_eth_dev_count_avail() != 1)
		die("opening the device", "there is not exactly one: pass it with --vdev");
	if (rte_eth_dev_configure(port, 1, 1, &settings) != 0 ||
	    rte_eth_rx_queue_setup(port, 0, 1024, SOCKET_ID_ANY, NULL, pool) != 0 ||
	    rte_eth_tx_queue_setup(port, 0, 1024, SOCKET_ID_ANY, NULL) != 0 || rte_eth_dev_start(port) != 0)
		die("starting the device", rte_strerror(rte_errno));
}

static void start_functions(void)
{
	for (unsigned int i = 0; i < function_count; i++) {
		functions[i].in = new_ring("in", i);
		functions[i].out = new_ring("out", i);
	}
	for (unsigned int i = 0; i < function_count; i++) {
		if (pthread_create(&functions[i].thread, NULL, run_function, &functions[i]) != 0)
			die("starting a function", "no thread");
	}
}

static void stop_functions(void)
{
	atomic_store(&stopping, true);
	for (unsigned int i = 0; i < function_count; i++) {
		wake(&functions[i]);
		pthread_join(functions[i].thread, NULL);
	}
}

static unsigned int number(const char *text, const char *name, unsigned int min, unsigned int max)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text == '\0' || *end != '\0' || value < min || value > max)
		die(name, "not a number in its range");
	return value;
}

int main(int argc, char **argv)
{
	const uint16_t port = 0;
	struct traffic traffic = { 0 };
	uint64_t start, sent, cycles, sleeps = 0, handled_wrongly = 0;
	int used = rte_eal_init(argc, argv);

	if (used < 0)
		die("starting DPDK", rte_strerror(rte_errno));
	if (argc - used != 6)
		die("usage", "EAL-ARGUMENTS -- FUNCTIONS MANAGER-CORE FUNCTION-CORE WARM-UP-MS TIME-MS");
	argv += used;
	function_count = number(argv[1], "FUNCTIONS", 1, FUNCTIONS_MAX);
	function_core = number(argv[3], "FUNCTION-CORE", 0, CPU_SETSIZE - 1);
	pin(number(argv[2], "MANAGER-CORE", 0, CPU_SETSIZE - 1));
	const uint64_t cycles_per_ms = rte_get_tsc_hz() / 1000;
	const uint64_t warm_up = number(argv[4], "WARM-UP-MS", 0, 3600000) * cycles_per_ms;
	const uint64_t time = number(argv[5], "TIME-MS", 1, 3600000) * cycles_per_ms;

	struct rte_mempool *pool = rte_pktmbuf_pool_create("packets", 2 * function_count * RING_PLACES + BUFFERS_SPARE,
							   BUFFER_CACHE, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (pool == NULL)
		die("making buffers", rte_strerror(rte_errno));
	open_port(port, pool);
	rte_eth_macaddr_get(port, &traffic.station);
	start_functions();

	traffic.checked = true;
	manage_for(port, &traffic, warm_up);
	traffic.checked = false;
	start = rte_rdtsc();
	sent = traffic.sent;
	manage_for(port, &traffic, time);
	cycles = rte_rdtsc() - start;
	sent = traffic.sent - sent;
	traffic.checked = true;
	drain(port, &traffic);
	stop_functions();

	for (unsigned int i = 0; i < function_count; i++) {
		sleeps += functions[i].sleeps;
		handled_wrongly += functions[i].handled != traffic.received;
	}
	printf("{\"received\":%" PRIu64 ",\"sent\":%" PRIu64 ",\"measured\":%" PRIu64 ",\"seconds\":%.9f,\"wrong\":%" PRIu64
	       ",\"miscounted\":%" PRIu64 ",\"sleeps\":%" PRIu64 ",\"wakes\":%" PRIu64 "}\n",
	       traffic.received, traffic.sent, sent, (double)cycles / rte_get_tsc_hz(), traffic.wrong, handled_wrongly,
	       sleeps, traffic.wakes);
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	rte_eal_cleanup();
	return traffic.sent == traffic.received && traffic.wrong == 0 && handled_wrongly == 0 ? 0 : 1;
}
