"""Sends the beginning of a connection from each of some addresses, which are not its own: `PORT TO FROM...`."""

import socket
import struct
import sys
from ipaddress import ip_address


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


port, to = int(sys.argv[1]), ip_address(sys.argv[2])
for number, source in enumerate(map(ip_address, sys.argv[3:])):
    segment = struct.pack("!HHIIBBHHH", 20000 + number, port, 1, 0, 5 << 4, 2, 1024, 0, 0)
    pseudo = source.packed + to.packed + struct.pack("!II", len(segment), socket.IPPROTO_TCP)
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    if to.version == 4:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0)
    else:
        header = struct.pack("!IHBB", 6 << 28, len(segment), socket.IPPROTO_TCP, 64)
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        raw.sendto(header + source.packed + to.packed + segment, (str(to), 0))
