/* Packets that are not for a socket: the function's records of them. The slots are the library's in Rust (guest-sdk/c/net), which keeps a packet
 * for as long as its record says that it is the function's. */
#include <string.h>

#include <pinion/net.h>

#include "../internal.h"
#include "library.h"

/* By slot. */
static struct pinion_packet records[PINION_SLOT_COUNT_DEFAULT];

uint32_t pinion_slot_of(const pinion_packet *packet)
{
    return (uint32_t)(packet - records);
}

static pinion_packet *record(const struct pinion_descriptor *descriptor, uint8_t *slot, uint8_t state)
{
    pinion_packet *packet = &records[descriptor->slot % PINION_SLOT_COUNT_DEFAULT];
    *packet = (pinion_packet){
        .slot_ = slot,
        .offset_ = descriptor->offset,
        .len_ = descriptor->len,
        .way_ = {(uint32_t)descriptor->port << 16 | descriptor->way},
        .arrived_us_ = descriptor->arrived,
        .flags_ = descriptor->flags,
        .state_ = state,
    };
    return packet;
}

void pinion_deliver_(const struct pinion_descriptor *received, uint8_t *slot)
{
    pinion_packet *packet = record(received, slot, PINION_FRESH);
    if (pinion_net_module_.service)
        pinion_net_module_.service->packet(packet);
    else
        pinion_net_module_.program->packet(packet);
    pinion_drop_rest(&packet, 1);
}

void pinion_drop_rest(pinion_packet *const *packets, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (packets[i]->state_ == PINION_FRESH)
            pinion_drop(packets[i]);
}

/* Ends the instance unless the library has taken the packet. */
static void taken(pinion_packet *packet, enum pinion_net result)
{
    if (result == PINION_NET_NOT_NOW)
        pinion_panic("a packet can be sent or dropped in a service's callbacks other than `ended`, and in a program's `packet`");
    if (result != PINION_NET_DONE)
        pinion_not_yours_(packet);
    packet->state_ = PINION_NODES;
}

void pinion_give_back(pinion_packet *packet, uint16_t port)
{
    pinion_check_(packet);
    taken(packet, pinion_net_give_back_((uint16_t)pinion_slot_of(packet), packet->offset_, packet->len_, packet->flags_, port));
}

void pinion_refuse_packet(pinion_packet *packet)
{
    pinion_check_(packet);
    taken(packet, pinion_net_refuse_((uint16_t)pinion_slot_of(packet), packet->offset_, packet->len_, packet->flags_));
}

pinion_packet *pinion_take_own(pinion_way way)
{
    struct pinion_descriptor made;
    uint8_t *slot = pinion_net_make_(way.bits_, &made);
    return slot ? record(&made, slot, PINION_KEPT) : NULL;
}

struct pinion_via pinion_via_of(const pinion_packet *packet)
{
    const uint8_t *frame = pinion_data(packet);
    struct pinion_via via = {.way = pinion_way_of(packet)};
    if (pinion_len(packet) < 16)
        return via;
    const uint16_t ethertype = pinion_load16(frame + 12);
    if (ethertype == PINION_ETHERTYPE_VLAN || ethertype == PINION_ETHERTYPE_SERVICE_VLAN)
        via.vlan = pinion_load16(frame + 14) & 0x0fff;
    return via;
}
