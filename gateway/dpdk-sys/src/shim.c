#define _GNU_SOURCE /* fopencookie */
#include "shim.h"

#include <stdio.h>
#include <sys/types.h>

/* A device that sets neither bit of a pair knows nothing. Both bits mean that the frame was never on a wire and has no
 * computed checksum, which a receiver that verifies checksums cannot use. */
static inline uint8_t fact(uint64_t flags, uint64_t good, uint64_t bad, uint8_t if_good, uint8_t if_bad)
{
	uint64_t found = flags & (good | bad);

	return found == good ? if_good : found == bad ? if_bad : 0;
}

static inline void describe(struct rte_mbuf *mbuf, struct pinion_frame *frame)
{
	uint64_t flags = mbuf->ol_flags;

	frame->data = rte_pktmbuf_mtod(mbuf, void *);
	frame->mbuf = mbuf;
	frame->capacity = mbuf->buf_len - mbuf->data_off;
	frame->len = rte_pktmbuf_data_len(mbuf);
	frame->port = 0;
	frame->facts = fact(flags, RTE_MBUF_F_RX_IP_CKSUM_GOOD, RTE_MBUF_F_RX_IP_CKSUM_BAD, PINION_IP_CHECKSUM_GOOD,
			    PINION_IP_CHECKSUM_BAD) |
		       fact(flags, RTE_MBUF_F_RX_L4_CKSUM_GOOD, RTE_MBUF_F_RX_L4_CKSUM_BAD, PINION_L4_CHECKSUM_GOOD,
			    PINION_L4_CHECKSUM_BAD);
}

static inline int is_plain(const struct rte_mbuf *mbuf, const struct rte_mempool *pool)
{
	return mbuf->pool == pool && mbuf->nb_segs == 1 && RTE_MBUF_DIRECT(mbuf) && rte_mbuf_refcnt_read(mbuf) == 1 &&
	       (uint32_t)mbuf->data_off + mbuf->data_len <= mbuf->buf_len;
}

uint16_t pinion_rx_burst(uint16_t port, uint16_t queue, const struct rte_mempool *pool, struct pinion_frame *frames,
			 uint16_t max, struct pinion_burst *burst)
{
	struct rte_mbuf *mbufs[PINION_BURST_MAX];
	uint16_t received = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(max, PINION_BURST_MAX));
	uint16_t kept = 0;
	uint32_t bytes = 0;

	for (uint16_t i = 0; i < received; i++) {
		struct rte_mbuf *mbuf = mbufs[i];

		if (unlikely(!is_plain(mbuf, pool))) {
			rte_pktmbuf_free(mbuf);
			continue;
		}
		rte_prefetch0(rte_pktmbuf_mtod(mbuf, void *));
		bytes += rte_pktmbuf_data_len(mbuf);
		describe(mbuf, &frames[kept++]);
	}
	burst->bytes = bytes;
	burst->rejected = received - kept;
	return kept;
}

int pinion_rx_waiting(uint16_t port, uint16_t queue)
{
	return rte_eth_rx_queue_count(port, queue);
}

uint32_t pinion_tx_prepare(const struct pinion_frame *frames, struct rte_mbuf **mbufs, uint16_t count)
{
	uint32_t bytes = 0;

	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = frames[i].mbuf;

		mbuf->data_len = frames[i].len;
		mbuf->pkt_len = frames[i].len;
		/* Receive flags must not be taken for requests on transmission. */
		mbuf->ol_flags &= RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;
		bytes += frames[i].len;
		mbufs[i] = mbuf;
	}
	return bytes;
}

uint16_t pinion_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

uint16_t pinion_alloc_burst(struct rte_mempool *pool, struct pinion_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[PINION_BURST_MAX];
	uint16_t allocated = count = RTE_MIN(count, PINION_BURST_MAX);

	if (unlikely(rte_pktmbuf_alloc_bulk(pool, mbufs, count) != 0)) {
		for (allocated = 0; allocated < count; allocated++) {
			mbufs[allocated] = rte_pktmbuf_alloc(pool);
			if (mbufs[allocated] == NULL)
				break;
		}
	}
	for (uint16_t i = 0; i < allocated; i++)
		describe(mbufs[i], &frames[i]);
	return allocated;
}

void pinion_free_burst(struct rte_mbuf **mbufs, uint16_t count)
{
	rte_pktmbuf_free_bulk(mbufs, count);
}

int pinion_errno(void)
{
	return rte_errno;
}

static pinion_log_fn take_log;

static ssize_t write_log(void *cookie, const char *text, size_t len)
{
	(void)cookie;
	take_log(text, len, rte_log_cur_msg_loglevel());
	return len;
}

int pinion_log_to(pinion_log_fn take)
{
	FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = write_log });

	if (stream == NULL)
		return -1;
	take_log = take;
	return rte_openlog_stream(stream);
}
