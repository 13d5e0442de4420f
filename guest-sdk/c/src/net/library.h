/* What the library in Rust (guest-sdk/c/net) has for this one. */
#ifndef PINION_NET_LIBRARY_H
#define PINION_NET_LIBRARY_H

#include <pinion/net.h>

/* Prepares the function. Returns an `enum pinion_init_status`. */
int32_t pinion_net_prepare_(const struct pinion_net_module_ *module, const uint8_t *config, size_t len);
/* Returns the address of the pool's header. */
uint32_t pinion_net_pool_(void);
/* Runs the function until the instance ends. */
void pinion_net_run_(void);

/* Gives a packet that the function has to the node, by an output or as PINION_PORT_REPLY and PINION_PORT_DROP say. Returns PINION_NET_NO_SOCKET
 * if the function has no packet in this slot, PINION_NET_NOT_NOW if packets cannot be given back in this callback. */
enum pinion_net pinion_net_give_back_(uint16_t slot, uint16_t offset, uint16_t len, uint16_t flags, uint16_t port);
/* Refuses a packet that the function has. */
enum pinion_net pinion_net_refuse_(uint16_t slot, uint16_t offset, uint16_t len, uint16_t flags);
/* Makes a packet in one of the function's own slots. Returns the slot's first byte, or NULL if none is free or can be used in this callback. */
uint8_t *pinion_net_make_(uint32_t way, struct pinion_descriptor *made);

#endif
