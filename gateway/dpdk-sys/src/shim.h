/* The DPDK functions that the gateway needs and that exist only as inline code, one call per burst. */
#ifndef PINION_SHIM_H
#define PINION_SHIM_H

#include <rte_config.h>

#include <stddef.h>
#include <stdint.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>

/* The fields by which a device spreads flows over queues. */
static const uint64_t PINION_RSS_FLOWS = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;

/* The checksums that a device can be asked to verify in received frames. */
static const uint64_t PINION_RX_CHECKSUMS =
	RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_CKSUM;

/* The device's findings, as bits of pinion_frame.facts; neither bit of a pair if it does not tell. */
enum {
	PINION_IP_CHECKSUM_GOOD = 1 << 0,
	PINION_IP_CHECKSUM_BAD = 1 << 1,
	PINION_L4_CHECKSUM_GOOD = 1 << 2,
	PINION_L4_CHECKSUM_BAD = 1 << 3,
};

/* The most frames in one call. */
enum { PINION_BURST_MAX = 64 };

/* An mbuf and its data. From `data` on, the first `len` bytes are the frame, and `capacity` bytes may be used. */
struct pinion_frame {
	void *data;
	struct rte_mbuf *mbuf;
	uint16_t capacity;
	uint16_t len;
	uint16_t port;
	uint8_t facts;
};

/* The results of a burst in addition to its frames. */
struct pinion_burst {
	uint32_t bytes;
	uint16_t rejected;
};

/* Receives up to `max` frames, but at most PINION_BURST_MAX. Frames that do not lie in exactly one mbuf of `pool` are
 * freed and counted as rejected. The others fill `frames` from the start; returns their number. Their ports are 0. */
uint16_t pinion_rx_burst(uint16_t port, uint16_t queue, const struct rte_mempool *pool, struct pinion_frame *frames,
			 uint16_t max, struct pinion_burst *burst);

/* Returns how many frames wait in a queue, or less than zero if the driver does not tell. */
int pinion_rx_waiting(uint16_t port, uint16_t queue);

/* Sets the lengths in the frames' mbufs and lists the mbufs in `mbufs`. Returns the sum of the lengths. */
uint32_t pinion_tx_prepare(const struct pinion_frame *frames, struct rte_mbuf **mbufs, uint16_t count);

/* Offers `count` mbufs to the device. Returns how many of the first ones it took. */
uint16_t pinion_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/* Allocates up to `count` mbufs, but at most PINION_BURST_MAX. Returns how many. */
uint16_t pinion_alloc_burst(struct rte_mempool *pool, struct pinion_frame *frames, uint16_t count);

/* Frees `count` mbufs. */
void pinion_free_burst(struct rte_mbuf **mbufs, uint16_t count);

/* Returns the calling thread's rte_errno. */
int pinion_errno(void);

/* Receives one message of DPDK's log. The level is from 1 (emergency) to 8 (debug). Must not unwind. */
typedef void (*pinion_log_fn)(const char *text, size_t len, uint32_t level);

/* Redirects DPDK's log from standard error and syslog to `take`. Must be called once, before rte_eal_init. */
int pinion_log_to(pinion_log_fn take);

#endif
