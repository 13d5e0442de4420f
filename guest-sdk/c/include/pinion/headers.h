/* What a frame's headers say: pinion_headers_of reads all of them, pinion_flow_of makes a key of them, the views below
 * read one each. None reads beyond the frame, whatever is in it. Checksums are not verified: whoever ends the connection does.
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

/** Why a frame's headers can't be read. A function that judges frames does well to drop it. */
enum pinion_unreadable {
    /** They can. */
    PINION_READABLE = 0,
    /** Neither IPv4 nor IPv6. */
    PINION_NOT_IP,
    /** Shorter than its headers say, or these contradict themselves. */
    PINION_MALFORMED,
    /** More than two VLAN tags, or eight extension headers. */
    PINION_TOO_MANY_HEADERS,
    /** A fragment that would overwrite the TCP header that its datagram is judged by (RFC 3128). */
    PINION_OVERLAPPING_FRAGMENT,
};

/** What the headers of an IP packet say. */
struct pinion_headers {
    /** 4 or 6. */
    uint8_t version;
    /** The number of the protocol above IP. */
    uint8_t protocol;
    /** VLAN tags before the IP header. */
    uint8_t vlan_tags;
    /** Who sends, in network order: 4 bytes, or 16. What is behind them is zero. */
    uint8_t source[16];
    /** Who is to receive, likewise. */
    uint8_t destination[16];
    /** Whether the packet has ports: that of TCP or UDP has, but no fragment behind the first. */
    bool has_ports;
    /** The sender's port. */
    uint16_t source_port;
    /** The receiver's port. */
    uint16_t destination_port;
    /** Whether `tcp_flags` are known: of TCP where there are ports. */
    bool has_tcp_flags;
    /** PINION_TCP_SYN and the others. */
    uint8_t tcp_flags;
    /** Whether it is an ICMP message, of either version, and no fragment behind the first. */
    bool has_icmp;
    /** That message's type. */
    uint8_t icmp_type;
    /** That message's code. */
    uint8_t icmp_code;
    /** Whether the message is an echo request, or the answer to one. */
    bool is_echo;
    /** By which whoever asked for an echo knows the answer. */
    uint16_t echo_id;
    /** Whether the message is an error, which quotes the packet that it is about, from `payload` on. */
    bool is_icmp_error;
    /** Whether the packet is a part of its datagram, and not all of it. */
    bool is_fragment;
    /** Whether other parts follow it. */
    bool more_fragments;
    /** Where in the datagram it belongs, in bytes. */
    uint16_t fragment_offset;
    /** What all fragments of the datagram have in common, besides addresses and, in IPv4, the protocol. */
    uint32_t fragment_id;
    /** Where in the frame the IP header is. */
    size_t network;
    /** Where there is what follows it and its options or extension headers. */
    size_t transport;
    /** Where there is what the transport's header carries; the same as `transport`, if that was not read. */
    size_t payload;
    /** The end of the IP packet: behind it is padding. */
    size_t end;
};

/** Reads an Ethernet frame. `headers` is meaningful only if PINION_READABLE is returned. */
enum pinion_unreadable pinion_headers_of(const uint8_t *frame, size_t len, struct pinion_headers *headers);

/** Has the packet sent from and to other addresses of the same version of IP, each of 4 or 16 bytes. The checksums of IPv4, TCP, UDP and
 *  ICMPv6 stay as right as they were, of fragments as well; a UDP checksum that is not there stays away. False if the frame is not the one
 *  whose headers these are; it is as it was. */
bool pinion_set_addresses(struct pinion_headers *headers, uint8_t *frame, size_t len, const uint8_t *source, const uint8_t *destination);

/** Has the packet sent from and to other ports of TCP or UDP, with checksums likewise. False if it has none, or the frame is another one. */
bool pinion_set_ports(struct pinion_headers *headers, uint8_t *frame, size_t len, uint16_t source, uint16_t destination);

/** What all packets of a flow have in common that go the same way, in bytes and without any between them: a key of state (pinion/state.h), and
 *  something to be compared by memcmp. Other flows have other bytes. */
struct pinion_flow_key {
    /** 4 or 6. */
    uint8_t version;
    /** The number of the protocol above IP. */
    uint8_t protocol;
    /** The ports of TCP and UDP, in network order; the identifier of an ICMP echo twice; and zero for other protocols. */
    uint8_t source_port[2];
    uint8_t destination_port[2];
    /** Who sends, in network order: 4 bytes, or 16. What is behind them is zero. */
    uint8_t source[16];
    /** Who is to receive, likewise. */
    uint8_t destination[16];
};

/** The flow that the packet belongs to. False for fragments but the first, of which only the datagram is known, and for ICMP messages that neither are
 *  echoes nor their answers. */
bool pinion_flow_of(const struct pinion_headers *headers, struct pinion_flow_key *flow);
/** The flow of the answers. */
struct pinion_flow_key pinion_flow_reversed(const struct pinion_flow_key *flow);
/** The same key for the flow and that of its answers: one of the two. */
struct pinion_flow_key pinion_flow_both_ways(const struct pinion_flow_key *flow);

/* Views: structs of bytes, so at any address, whose numbers pinion_load16 and the like read and pinion_store16 writes. Each function gives the
 * header that begins at `at` of a frame of `len` bytes, to be read and changed in place, or NULL if it does not lie within the frame, or
 * is none. */

struct pinion_ethernet {
    uint8_t destination[6];
    uint8_t source[6];
    /** Of the first VLAN tag, if there is one, else of what follows. */
    uint8_t ethertype[2];
};

struct pinion_vlan {
    /** Priority, and in the lower 12 bits the number. */
    uint8_t tag[2];
    /** Of what follows. */
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
    /** Of an echo: identifier and sequence number. */
    uint8_t rest[4];
};

/** The header of an Ethernet frame. */
struct pinion_ethernet *pinion_ethernet_of(uint8_t *frame, size_t len);
/** A VLAN tag: at 14 behind the tag's EtherType, at 18 for an inner one. */
struct pinion_vlan *pinion_vlan_at(uint8_t *frame, size_t len, size_t at);
/** An IPv4 header. All of it is in the frame with its options, of which pinion_ipv4_len tells, and so is the packet. */
struct pinion_ipv4 *pinion_ipv4_at(uint8_t *frame, size_t len, size_t at);
/** An IPv6 header. All of the packet is in the frame. */
struct pinion_ipv6 *pinion_ipv6_at(uint8_t *frame, size_t len, size_t at);
/** A TCP header. All of it is in the frame with its options, of which pinion_tcp_len tells. */
struct pinion_tcp *pinion_tcp_at(uint8_t *frame, size_t len, size_t at);
/** A UDP header. */
struct pinion_udp *pinion_udp_at(uint8_t *frame, size_t len, size_t at);
/** The header of an ICMP message of either version. */
struct pinion_icmp *pinion_icmp_at(uint8_t *frame, size_t len, size_t at);

/** Bytes of an IPv4 header with its options. */
static inline size_t pinion_ipv4_len(const struct pinion_ipv4 *header)
{
    return (size_t)(header->version_and_words & 0x0f) * 4;
}

/** Bytes of a TCP header with its options. */
static inline size_t pinion_tcp_len(const struct pinion_tcp *header)
{
    return (size_t)(header->words >> 4) * 4;
}

#endif
