/* Packets, their slots, and the two rings. This file turns a slot's number into a pointer.
 *
 * Each slot has a record, a pinion_packet, with the slot's owner. So if the function sends a packet twice, or reads one that the node
 * owns again, this file finds the error, and not the node, which would end the instance for it. Nothing here allocates or blocks. Slots
 * that have never held a packet are never touched, so they cost the node no memory. */
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

uint32_t pinion_slot_of(const pinion_packet *packet)
{
    return (uint32_t)(packet - pinion_module_.packets);
}

void pinion_give_back(pinion_packet *packet, uint16_t port)
{
    pinion_check_(packet);
    const uint32_t slot = pinion_slot_of(packet);
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

pinion_packet *pinion_take_own(pinion_way way)
{
    if (pool.own_free == 0)
        return NULL;
    const uint16_t slot = pinion_module_.own_free[--pool.own_free];
    pinion_packet *packet = &pinion_module_.packets[slot];
    *packet = (pinion_packet){.slot_ = pinion_module_.slots[slot], .way_ = way, .state_ = PINION_KEPT};
    return packet;
}

void pinion_wake_at(uint64_t time_ns)
{
    pool.wake_at_ns = time_ns;
}

uint64_t pinion_wake_time(void)
{
    return pool.wake_at_ns;
}

void pinion_finish(void)
{
    pool.finished = true;
}

bool pinion_is_finished(void)
{
    return pool.finished;
}
