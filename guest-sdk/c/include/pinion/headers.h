/* Headers of a frame: pinion_headers_of reads all of them, pinion_flow_of makes a key of them, and the views below read one header each.
 * None reads beyond the frame, whatever it contains. Checksums are not verified: that is left to the endpoint of the connection.
 *
 *   | addresses | VLAN tags, 0 to 2 | type | IPv4 or IPv6, with what belongs to it | TCP, UDP, ICMP | payload | padding |
 *                                          ^ network                               ^ transport      ^ payload
 *                                                                                                             ^ end
 */
#ifndef PINION_HEADERS_H
#define PINION_HEADERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** EtherTypes. */
enum {
    PINION_ETHERTYPE_IPV4 = 0x0800,
    PINION_ETHERTYPE_ARP = 0x0806,
    PINION_ETHERTYPE_VLAN = 0x8100,
    PINION_ETHERTYPE_SERVICE_VLAN = 0x88a8,
    PINION_ETHERTYPE_IPV6 = 0x86dd,
};

/** Numbers of protocols above IP. */
enum {
    PINION_ICMP = 1,
    PINION_TCP = 6,
    PINION_UDP = 17,
    PINION_ICMPV6 = 58,
};

/** Flags of a TCP segment, as they are in the header's 14th byte. */
enum {
    PINION_TCP_FIN = 0x01,
    PINION_TCP_SYN = 0x02,
    PINION_TCP_RST = 0x04,
    PINION_TCP_PSH = 0x08,
    PINION_TCP_ACK = 0x10,
    PINION_TCP_URG = 0x20,
};

/** Why a frame's headers cannot be read. A function that filters frames should drop such a frame. */
enum pinion_unreadable {
    /** The headers can be read. */
    PINION_READABLE = 0,
    /** Neither IPv4 nor IPv6. */
    PINION_NOT_IP,
    /** The frame is shorter than its headers say, or the headers contradict each other. */
    PINION_MALFORMED,
    /** More than two VLAN tags or eight extension headers. Or a first fragment of IPv6 with so many extension headers that the fields by
     *  which it is judged are not in the datagram's first 24 bytes. */
    PINION_TOO_MANY_HEADERS,
    /** A fragment that could overwrite the headers by which its datagram is judged (RFC 3128, RFC 5722). For TCP over IPv4 that is a
     *  fragment that begins in the first 20 bytes. For IPv6 it is one that begins in the first 24 bytes, whatever protocol it states. */
    PINION_OVERLAPPING_FRAGMENT,
};

/** The contents of an IP packet's headers. */
struct pinion_headers {
    /** 4 or 6. */
    uint8_t version;
    /** The number of the protocol above IP. In a later fragment of IPv6 it is the fragment's own statement, which does not count: the
     *  datagram has the protocol that its first fragment states (RFC 8200, 4.5). */
    uint8_t protocol;
    /** VLAN tags before the IP header. */
    uint8_t vlan_tags;
    /** The sender's address, in network order: 4 bytes, or 16. The remaining bytes are zero. */
    uint8_t source[16];
    /** The receiver's address, likewise. */
    uint8_t destination[16];
    /** Whether the packet has ports. A packet of TCP or UDP has, except in fragments after the first. */
    bool has_ports;
    /** The sender's port. */
    uint16_t source_port;
    /** The receiver's port. */
    uint16_t destination_port;
    /** Whether `tcp_flags` is set: for TCP, where there are ports. */
    bool has_tcp_flags;
    /** PINION_TCP_SYN and the others. */
    uint8_t tcp_flags;
    /** Whether the packet is an ICMP message, of either version, and not a fragment after the first. */
    bool has_icmp;
    /** The ICMP message's type. */
    uint8_t icmp_type;
    /** The ICMP message's code. */
    uint8_t icmp_code;
    /** Whether the message is an echo request, or the answer to one. */
    bool is_echo;
    /** The identifier by which the sender of an echo request recognises the reply. */
    uint16_t echo_id;
    /** Whether the message is an error, which quotes, from `payload` on, the packet that it is about. */
    bool is_icmp_error;
    /** Whether the packet is only a part of its datagram. */
    bool is_fragment;
    /** Whether more fragments follow it. */
    bool more_fragments;
    /** The fragment's offset in its datagram, in bytes. */
    uint16_t fragment_offset;
    /** The identification that all fragments of the datagram share, besides addresses and, in IPv4, the protocol. */
    uint32_t fragment_id;
    /** Offset of the IP header in the frame. */
    size_t network;
    /** Offset of what follows the IP header with its options or extension headers. */
    size_t transport;
    /** Offset of the transport header's payload; equal to `transport` if that header was not read. */
    size_t payload;
    /** End of the IP packet in the frame; padding follows it. */
    size_t end;
};

/** Reads the headers of an Ethernet frame. `headers` is meaningful only if PINION_READABLE is returned. */
enum pinion_unreadable pinion_headers_of(const uint8_t *frame, size_t len, struct pinion_headers *headers);

/** Replaces the packet's addresses by others of the same version of IP, each of 4 or 16 bytes. The checksums of IPv4, TCP, UDP and
 *  ICMPv6 stay as correct as they were, in fragments as well. A UDP checksum of zero, which means that there is none, stays zero.
 *  Returns false, and leaves the frame unchanged, if it is not the frame that `headers` was read from. */
bool pinion_set_addresses(struct pinion_headers *headers, uint8_t *frame, size_t len, const uint8_t *source, const uint8_t *destination);

/** Replaces the packet's TCP or UDP ports, and updates the checksums likewise. Returns false if the packet has no ports, or the frame is
 *  another one. */
bool pinion_set_ports(struct pinion_headers *headers, uint8_t *frame, size_t len, uint16_t source, uint16_t destination);

/** What all packets of a flow in one direction have in common, without padding between the fields: a key of state (pinion/state.h),
 *  which memcmp can compare. Different flows have different bytes. */
struct pinion_flow_key {
    /** 4 or 6. */
    uint8_t version;
    /** The number of the protocol above IP. */
    uint8_t protocol;
    /** The ports of TCP and UDP, in network order. For an ICMP echo both are its identifier; for other protocols they are zero. */
    uint8_t source_port[2];
    uint8_t destination_port[2];
    /** The sender's address, in network order: 4 bytes, or 16. The remaining bytes are zero. */
    uint8_t source[16];
    /** The receiver's address, likewise. */
    uint8_t destination[16];
};

/** Finds the flow that the packet belongs to. Returns false for fragments after the first, as their ports are unknown, and for ICMP
 *  messages that are neither echo requests nor echo replies. */
bool pinion_flow_of(const struct pinion_headers *headers, struct pinion_flow_key *flow);
/** Returns the flow of the opposite direction. */
struct pinion_flow_key pinion_flow_reversed(const struct pinion_flow_key *flow);
/** Returns one key for both directions of a flow: one of the two flows' keys. */
struct pinion_flow_key pinion_flow_both_ways(const struct pinion_flow_key *flow);

/* Views: structs of bytes, so valid at any alignment. pinion_load16 and the like read their numbers, and pinion_store16 and the like
 * write them. Each function returns the header that begins at `at` in a frame of `len` bytes, which may be read and changed in place.
 * Returns NULL if the header does not lie within the frame, or is invalid. */

struct pinion_ethernet {
    uint8_t destination[6];
    uint8_t source[6];
    /** The first VLAN tag's EtherType if there is a tag, else that of the payload. */
    uint8_t ethertype[2];
};

struct pinion_vlan {
    /** Priority, and the VLAN's number in the lower 12 bits. */
    uint8_t tag[2];
    /** EtherType of what follows. */
    uint8_t ethertype[2];
};

struct pinion_ipv4 {
    uint8_t version_and_words;
    uint8_t service;
    uint8_t total_len[2];
    uint8_t id[2];
    uint8_t fragment[2];
    uint8_t ttl;
    uint8_t protocol;
    uint8_t checksum[2];
    uint8_t source[4];
    uint8_t destination[4];
};

struct pinion_ipv6 {
    uint8_t version_class_label[4];
    uint8_t payload_len[2];
    uint8_t next_header;
    uint8_t hop_limit;
    uint8_t source[16];
    uint8_t destination[16];
};

struct pinion_tcp {
    uint8_t source_port[2];
    uint8_t destination_port[2];
    uint8_t sequence[4];
    uint8_t acknowledgement[4];
    uint8_t words;
    uint8_t flags;
    uint8_t window[2];
    uint8_t checksum[2];
    uint8_t urgent[2];
};

struct pinion_udp {
    uint8_t source_port[2];
    uint8_t destination_port[2];
    uint8_t len[2];
    uint8_t checksum[2];
};

struct pinion_icmp {
    uint8_t type;
    uint8_t code;
    uint8_t checksum[2];
    /** For an echo: identifier and sequence number. */
    uint8_t rest[4];
};

/** Returns the header of an Ethernet frame. */
struct pinion_ethernet *pinion_ethernet_of(uint8_t *frame, size_t len);
/** Returns a VLAN tag: at 14 after the tag's EtherType, at 18 for an inner tag. */
struct pinion_vlan *pinion_vlan_at(uint8_t *frame, size_t len, size_t at);
/** Returns an IPv4 header. The frame contains the whole header with its options (pinion_ipv4_len) and the whole packet. */
struct pinion_ipv4 *pinion_ipv4_at(uint8_t *frame, size_t len, size_t at);
/** Returns an IPv6 header. The frame contains the whole packet. */
struct pinion_ipv6 *pinion_ipv6_at(uint8_t *frame, size_t len, size_t at);
/** Returns a TCP header. The frame contains the whole header with its options (pinion_tcp_len). */
struct pinion_tcp *pinion_tcp_at(uint8_t *frame, size_t len, size_t at);
/** Returns a UDP header. */
struct pinion_udp *pinion_udp_at(uint8_t *frame, size_t len, size_t at);
/** Returns the header of an ICMP message of either version. */
struct pinion_icmp *pinion_icmp_at(uint8_t *frame, size_t len, size_t at);

/** Returns the length of an IPv4 header with its options, in bytes. */
static inline size_t pinion_ipv4_len(const struct pinion_ipv4 *header)
{
    return (size_t)(header->version_and_words & 0x0f) * 4;
}

/** Returns the length of a TCP header with its options, in bytes. */
static inline size_t pinion_tcp_len(const struct pinion_tcp *header)
{
    return (size_t)(header->words >> 4) * 4;
}

#endif
