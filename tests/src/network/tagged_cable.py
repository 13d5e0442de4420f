"""Joins an interface whose frames are tagged with a VLAN with a tap, whose frames are not. Says "ready", then the first wrong frame."""

import fcntl
import select
import socket
import struct
import sys

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
SOL_PACKET, PACKET_AUXDATA, PACKET_OUTGOING = 263, 8, 4
ALL_ETHERTYPES, TAG, LONGEST = 3, 0x8100, 65536
# The kernel at the node's side sends nothing but IPv6.
OF_NODE = (b"\x08\x00", b"\x08\x06")

tagged, plain, vlan = sys.argv[1], sys.argv[2], int(sys.argv[3])
tap = open("/dev/net/tun", "r+b", buffering=0)
fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", plain.encode(), IFF_TAP | IFF_NO_PI))
cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_ETHERTYPES))
cable.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
cable.bind((tagged, ALL_ETHERTYPES))
print("ready", flush=True)


def vlan_of(ancillary):
    """The kernel has taken the tag out of a received frame, and tells it beside."""
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            tci, ethertype = struct.unpack_from("16xHH", data)
            return tci & 0xFFF if ethertype == TAG else None
    return None


while True:
    for ready in select.select([tap, cable], [], [])[0]:
        if ready is tap:
            frame = tap.read(LONGEST)
            cable.send(frame[:12] + struct.pack("!HH", TAG, vlan) + frame[12:])
            continue
        frame, ancillary, _, address = cable.recvmsg(LONGEST, 256)
        if address[2] == PACKET_OUTGOING:
            continue
        if vlan_of(ancillary) == vlan:
            tap.write(frame)
        elif frame[12:14] in OF_NODE:
            sys.exit(f"a frame came in VLAN {vlan_of(ancillary)}: {frame.hex()}")
