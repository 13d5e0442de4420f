/* A packet, and what becomes of it. Knows neither slots nor rings: pool.c does, and in a function with sockets net/frames.c. */
#include <string.h>

#include "internal.h"

void pinion_not_yours_(const pinion_packet *packet)
{
    const unsigned slot = (unsigned)pinion_slot_of(packet);
    if (packet->state_ == PINION_NODES)
        pinion_panic("the packet of slot %u was used after it was sent or dropped", slot);
    pinion_panic("the packet of slot %u was used after it was dropped, or never made", slot);
}

void pinion_send(pinion_packet *packet)
{
    pinion_give_back(packet, PINION_PORT_NEXT);
}

void pinion_send_to(pinion_packet *packet, uint16_t output)
{
    /* Larger numbers have other meanings; no chain has so many outputs. */
    pinion_give_back(packet, output < PINION_PORT_REPLY ? output : PINION_PORT_REPLY - 1);
}

void pinion_reply(pinion_packet *packet)
{
    pinion_give_back(packet, PINION_PORT_REPLY);
}

void pinion_drop(pinion_packet *packet)
{
    pinion_give_back(packet, PINION_PORT_DROP);
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
    pinion_packet *packet = pinion_take_own(way);
    if (!packet)
        return NULL;
    packet->offset_ = offset;
    packet->len_ = (uint16_t)len;
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
