/* Packets, their slots, and the two rings. This file turns a slot's number into a pointer.
 *
 * Each slot has a record, a pinion_packet, with the slot's owner. So if the function sends a packet twice, or reads one that the node
 * owns again, this file finds the error, and not the node, which would end the instance for it. Nothing here allocates or blocks. Slots
 * that have never held a packet are never touched, so they cost the node no memory. */
#include <string.h>

#include "internal.h"

static struct {
    /* The first of the function's own slots. */
    uint32_t own_from;
    /* The number of free own slots. Their indices are on the stack `own_free`. */
    uint32_t own_free;
    bool finished;
    uint64_t wake_at_ns;
} pool;

static struct pinion_descriptor *entry(struct pinion_ring_header *ring, uint32_t index)
{
    struct pinion_descriptor *entries = (struct pinion_descriptor *)(ring + 1);
    return &entries[index & (pinion_module_.slot_count - 1)];
}

static void own_slot_is_free(uint32_t slot)
{
    pinion_module_.packets[slot].state_ = PINION_FREE;
    pinion_module_.own_free[pool.own_free++] = (uint16_t)slot;
}

void pinion_pool_open(void)
{
    const uint16_t own = pinion_module_.function.own_slots;
    if (own >= pinion_module_.slot_count)
        pinion_panic("own_slots is %u, and must leave some of %u slots for packets to come into", own, (unsigned)pinion_module_.slot_count);
    pool.own_from = pinion_module_.slot_count - own;
    pool.own_free = 0;
    for (uint32_t slot = pinion_module_.slot_count; slot-- > pool.own_from;)
        own_slot_is_free(slot);
    pool.finished = false;
    pool.wake_at_ns = PINION_NEVER;
}

/* Returns the packet of a receive descriptor, or NULL if the descriptor returns one of the function's own slots. */
static pinion_packet *receive(const struct pinion_descriptor *received)
{
    const uint32_t slot = received->slot;
    if (slot >= pinion_module_.slot_count || (size_t)received->offset + received->len > PINION_SLOT_SIZE)
        pinion_panic("the node's descriptor names slot %u, %u bytes at %u", (unsigned)slot, received->len, received->offset);
    if (slot >= pool.own_from) {
        own_slot_is_free(slot);
        return NULL;
    }
    pinion_packet *packet = &pinion_module_.packets[slot];
    packet->slot_ = pinion_module_.slots[slot];
    packet->offset_ = received->offset;
    packet->len_ = received->len;
    packet->way_.bits_ = (uint32_t)received->port << 16 | received->way;
    packet->arrived_us_ = received->arrived;
    packet->flags_ = received->flags;
    packet->state_ = PINION_FRESH;
    return packet;
}

size_t pinion_receive(pinion_packet *packets[PINION_BATCH_PACKETS_MAX], uint32_t count)
{
    struct pinion_ring_header *rx = pinion_module_.rx;
    size_t received = 0;
    for (uint32_t i = 0; i < count; i++) {
        pinion_packet *packet = receive(entry(rx, rx->head + i));
        if (packet)
            packets[received++] = packet;
    }
    rx->head += count;
    return received;
}

void pinion_drop_rest(pinion_packet *const *packets, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (packets[i]->state_ == PINION_FRESH)
            pinion_drop(packets[i]);
}

static void handle(pinion_packet *const *packets, size_t count)
{
    if (pinion_module_.function.batch)
        pinion_module_.function.batch(packets, count);
    else
        for (size_t i = 0; i < count; i++)
            pinion_module_.function.packet(packets[i]);
    pinion_drop_rest(packets, count);
}

uint32_t pinion_serve(uint32_t fresh)
{
    while (fresh > 0 && !pool.finished) {
        pinion_packet *packets[PINION_BATCH_PACKETS_MAX];
        const uint32_t count = fresh < PINION_BATCH_PACKETS_MAX ? fresh : PINION_BATCH_PACKETS_MAX;
        const size_t received = pinion_receive(packets, count);
        if (received > 0)
            handle(packets, received);
        fresh -= count;
    }
    /* The deadline is checked even if packets keep arriving: a busy function has deadlines as well. */
    if (!pool.finished && pool.wake_at_ns != PINION_NEVER && pool.wake_at_ns <= pinion_now_ns()) {
        pool.wake_at_ns = PINION_NEVER;
        if (pinion_module_.function.expire)
            pinion_module_.function.expire();
    }
    return fresh;
}

void pinion_not_yours_(const pinion_packet *packet)
{
    const unsigned slot = (unsigned)(packet - pinion_module_.packets);
    if (packet->state_ == PINION_NODES)
        pinion_panic("the packet of slot %u was used after it was sent or dropped", slot);
    pinion_panic("the packet of slot %u was used after it was dropped, or never made", slot);
}

/* Called once per packet: from here on the node owns the slot. */
static void give_back(pinion_packet *packet, uint16_t port)
{
    pinion_check_(packet);
    const uint32_t slot = (uint32_t)(packet - pinion_module_.packets);
    if (slot >= pool.own_from && port == PINION_PORT_DROP) {
        /* A packet that was made and not sent does not concern the node. */
        own_slot_is_free(slot);
        return;
    }
    packet->state_ = PINION_NODES;
    struct pinion_ring_header *tx = pinion_module_.tx;
    *entry(tx, tx->tail) = (struct pinion_descriptor){
        .slot = (uint16_t)slot,
        .offset = packet->offset_,
        .len = packet->len_,
        .port = port,
        .flags = packet->flags_ & PINION_TX_CHECKSUM,
        .way = (uint16_t)packet->way_.bits_,
    };
    tx->tail++;
}

void pinion_send(pinion_packet *packet)
{
    give_back(packet, PINION_PORT_NEXT);
}

void pinion_send_to(pinion_packet *packet, uint16_t output)
{
    /* Larger numbers have other meanings; no chain has so many outputs. */
    give_back(packet, output < PINION_PORT_REPLY ? output : PINION_PORT_REPLY - 1);
}

void pinion_reply(pinion_packet *packet)
{
    give_back(packet, PINION_PORT_REPLY);
}

void pinion_drop(pinion_packet *packet)
{
    give_back(packet, PINION_PORT_DROP);
}

void pinion_hold(pinion_packet *packet)
{
    pinion_check_(packet);
    packet->state_ = PINION_KEPT;
}

static enum pinion_found found(const pinion_packet *packet, uint16_t good, uint16_t bad)
{
    pinion_check_(packet);
    const uint32_t found = packet->flags_ & (good | bad);
    return found == good ? PINION_FOUND_GOOD : found == bad ? PINION_FOUND_BAD : PINION_FOUND_NOTHING;
}

enum pinion_found pinion_ip_checksum(const pinion_packet *packet)
{
    return found(packet, PINION_RX_IP_CHECKSUM_GOOD, PINION_RX_IP_CHECKSUM_BAD);
}

enum pinion_found pinion_l4_checksum(const pinion_packet *packet)
{
    return found(packet, PINION_RX_L4_CHECKSUM_GOOD, PINION_RX_L4_CHECKSUM_BAD);
}

void pinion_complete_checksums(pinion_packet *packet)
{
    pinion_check_(packet);
    packet->flags_ |= PINION_TX_CHECKSUM;
}

bool pinion_set_len(pinion_packet *packet, size_t len)
{
    pinion_check_(packet);
    if (len > PINION_SLOT_SIZE - packet->offset_)
        return false;
    if (len > packet->len_)
        memset(packet->slot_ + packet->offset_ + packet->len_, 0, len - packet->len_);
    packet->len_ = (uint16_t)len;
    return true;
}

bool pinion_prepend(pinion_packet *packet, size_t count)
{
    pinion_check_(packet);
    if (count > packet->offset_)
        return false;
    packet->offset_ -= (uint16_t)count;
    packet->len_ += (uint16_t)count;
    memset(packet->slot_ + packet->offset_, 0, count);
    return true;
}

bool pinion_trim_front(pinion_packet *packet, size_t count)
{
    pinion_check_(packet);
    if (count > packet->len_)
        return false;
    packet->offset_ += (uint16_t)count;
    packet->len_ -= (uint16_t)count;
    return true;
}

static pinion_packet *make_at(uint16_t offset, const void *bytes, size_t len, pinion_way way)
{
    if (pool.own_free == 0)
        return NULL;
    const uint16_t slot = pinion_module_.own_free[--pool.own_free];
    pinion_packet *packet = &pinion_module_.packets[slot];
    *packet = (pinion_packet){
        .slot_ = pinion_module_.slots[slot],
        .offset_ = offset,
        .len_ = (uint16_t)len,
        .way_ = way,
        .state_ = PINION_KEPT,
    };
    if (bytes)
        memcpy(packet->slot_ + offset, bytes, len);
    else
        memset(packet->slot_ + offset, 0, len);
    return packet;
}

pinion_packet *pinion_make(const void *bytes, size_t len, pinion_way way)
{
    return len > PINION_PACKET_BYTES_MAX ? NULL : make_at(PINION_RX_HEADROOM, bytes, len, way);
}

pinion_packet *pinion_clone(const pinion_packet *packet)
{
    pinion_packet *clone = make_at(packet->offset_, pinion_data(packet), packet->len_, packet->way_);
    if (clone) {
        clone->arrived_us_ = packet->arrived_us_;
        clone->flags_ = packet->flags_;
    }
    return clone;
}

uint64_t pinion_now_ns(void)
{
    return pinion_host_clock();
}

uint64_t pinion_keep_alive_until(uint64_t until_ns)
{
    return pinion_host_keep_alive_until(until_ns);
}

void pinion_wake_at(uint64_t time_ns)
{
    pool.wake_at_ns = time_ns;
}

uint64_t pinion_wake_time(void)
{
    return pool.wake_at_ns;
}

void pinion_random(void *bytes, size_t len)
{
    uint8_t *rest = bytes;
    while (len > 0) {
        const size_t part = len < PINION_RANDOM_BYTES_MAX ? len : PINION_RANDOM_BYTES_MAX;
        const int32_t error = pinion_host_random(rest, part);
        if (error == PINION_ERRNO_TOO_LONG) {
            /* All calls of this turn together have moved as many bytes as they may: let others run first. */
            pinion_host_yield();
            continue;
        }
        if (error != PINION_ERRNO_OK)
            pinion_panic("the node gave no random bytes: errno %d", (int)error);
        rest += part;
        len -= part;
    }
}

void pinion_finish(void)
{
    pool.finished = true;
}

bool pinion_is_finished(void)
{
    return pool.finished;
}

void pinion_yield(void)
{
    pinion_host_yield();
}
