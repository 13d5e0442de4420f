#include <string.h>

#include "internal.h"

bool pinion_message(const pinion_packet *packet, uint8_t **payload, size_t *len)
{
    uint8_t *frame = pinion_data(packet);
    if (packet->len_ < PINION_MESSAGE_HEADER_BYTES || pinion_load16(frame + 12) != PINION_MESSAGE_ETHERTYPE
        || frame[PINION_MESSAGE_VERSION_AT] != PINION_MESSAGE_VERSION)
        return false;
    *payload = frame + PINION_MESSAGE_HEADER_BYTES;
    *len = packet->len_ - PINION_MESSAGE_HEADER_BYTES;
    return true;
}

bool pinion_answer(pinion_packet *packet, const void *payload, size_t len)
{
    uint8_t *place;
    size_t had;
    if (!pinion_message(packet, &place, &had) || len > PINION_MESSAGE_PAYLOAD_BYTES_MAX)
        return false;
    if (PINION_MESSAGE_HEADER_BYTES + len > PINION_SLOT_SIZE - packet->offset_)
        return false;
    memmove(place, payload, len);
    packet->len_ = (uint16_t)(PINION_MESSAGE_HEADER_BYTES + len);
    pinion_reply(packet);
    return true;
}
