package main

import "encoding/binary"

const (
	ethernetBytes = 14
	ipv4Bytes     = 20
	icmpBytes     = 8

	etherTypeIPv4 = 0x0800
	protocolICMP  = 1
	echoReply     = 0
	echoRequest   = 8
	hopLimit      = 64
	// The bits of the fragment field that are clear in a whole datagram: more fragments follow, and the offset.
	fragment = 0x3fff
)

// turn makes a reply of an echo request in place, and says whether the frame was one. The reply's checksums are computed anew.
func turn(frame []byte) bool {
	if len(frame) < ethernetBytes+ipv4Bytes || binary.BigEndian.Uint16(frame[12:]) != etherTypeIPv4 {
		return false
	}
	// The frame may be padded.
	ip := frame[ethernetBytes:]
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || header < ipv4Bytes || total < header+icmpBytes || total > len(ip) {
		return false
	}
	if ip[9] != protocolICMP || binary.BigEndian.Uint16(ip[6:])&fragment != 0 || sum(ip[:header]) != 0 {
		return false
	}
	icmp := ip[header:total]
	if icmp[0] != echoRequest || icmp[1] != 0 || sum(icmp) != 0 {
		return false
	}
	if !isHost(ip[12:16]) || !isHost(ip[16:20]) || frame[0]&1 != 0 || frame[6]&1 != 0 {
		return false
	}
	swap(frame[0:6], frame[6:12])
	swap(ip[12:16], ip[16:20])
	ip[8], icmp[0] = hopLimit, echoReply
	setSum(ip[:header], ip[10:12])
	setSum(icmp, icmp[2:4])
	return true
}

// isHost says whether an address is neither a group's nor everyone's nor none.
func isHost(address []byte) bool {
	number := binary.BigEndian.Uint32(address)
	return number != 0 && address[0] < 224
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// sum returns the Internet checksum of bytes, which is zero if they contain theirs.
func sum(bytes []byte) uint16 {
	total := uint32(0)
	for ; len(bytes) > 1; bytes = bytes[2:] {
		total += uint32(bytes[0])<<8 | uint32(bytes[1])
	}
	if len(bytes) > 0 {
		total += uint32(bytes[0]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// setSum writes the checksum of bytes, of which field is a part.
func setSum(bytes, field []byte) {
	field[0], field[1] = 0, 0
	binary.BigEndian.PutUint16(field, sum(bytes))
}
