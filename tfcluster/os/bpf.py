"""Socket filters in classic BPF: a socket passes packets from this machine and a list of source addresses alone.

The filter of a listening TCP socket sees every segment from the SYN on, and every connection that the socket accepts
inherits it.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address

from tfcluster.os.network import Address

# From linux/filter.h and asm-generic/socket.h; Python's socket module does not define them.
_SO_ATTACH_FILTER = 26
_SO_LOCK_FILTER = 44
_MAX_INSTRUCTIONS = 4096
_NETWORK_HEADER = -0x100000  # SKF_NET_OFF: the offset of the IPv4 or IPv6 header; offset 0 is the TCP header
_INTERFACE = -0x1000 + 8  # SKF_AD_OFF + SKF_AD_IFINDEX: the index of the device by which the packet has arrived
_LOOPBACK = 1  # LOOPBACK_IFINDEX: that of `lo`, in every network namespace

#: The codes of instructions that other filters use too.
LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_NOT_BELOW, RETURN = 0x20, 0x15, 0x35, 0x06
_LOAD_BYTE, _LOAD_MEMORY, _STORE_MEMORY = 0x30, 0x60, 0x02
_SHIFT_RIGHT, _JUMP = 0x74, 0x05
_PASS, _DROP = 0xFFFFFFFF, 0

_Program = list[bytes]


def instruction(code: int, operand: int, yes: int = 0, no: int = 0) -> bytes:
    """Return a struct sock_filter; a jump skips `yes` instructions if its condition is true, and `no` if it is not."""
    return struct.pack("=HBBI", code, yes, no, operand & 0xFFFFFFFF)


def attach_filter(listener: socket.socket, sources: Collection[Address]) -> None:
    """Attach a filter that passes packets only from a list of addresses and from this machine itself.

    To other addresses the socket does not respond. The filter is locked: it cannot be removed. A PermissionError says
    that this process may not attach one to a TCP socket (newer kernels require CAP_NET_ADMIN).
    """
    instructions = _filter_program(sources)
    if len(instructions) > _MAX_INSTRUCTIONS:
        raise OSError(errno.E2BIG, f"{len(sources)} addresses do not fit in a socket's filter")
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = struct.pack("HP", len(instructions), ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OSError(
                error.errno, f"{len(sources)} addresses require a larger sysctl net.core.optmem_max"
            ) from error
        raise
    listener.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def has_locked_filter(listener: socket.socket) -> bool:
    """Return whether a socket has a filter that cannot be removed, such as that of `attach_filter`."""
    return bool(listener.getsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER))


def _filter_program(sources: Iterable[Address]) -> _Program:
    ordered = sorted(set(sources), key=lambda address: (address.version, int(address)))
    for_ipv4 = _for_ipv4([each for each in ordered if isinstance(each, IPv4Address)])
    for_ipv6 = _for_ipv6([each for each in ordered if isinstance(each, IPv6Address)])
    return [
        # A connection of this machine arrives by `lo`, whatever addresses it has; one from the network never does.
        instruction(LOAD_WORD, _INTERFACE),
        instruction(JUMP_IF_EQUAL, _LOOPBACK, no=1),
        instruction(RETURN, _PASS),
        # A socket for IPv6 receives IPv4 too. The first four bits of both headers are the version.
        instruction(_LOAD_BYTE, _NETWORK_HEADER),
        instruction(_SHIFT_RIGHT, 4),
        instruction(JUMP_IF_EQUAL, 4, yes=1),
        instruction(_JUMP, len(for_ipv4)),
        *for_ipv4,
        *for_ipv6,
    ]


def _for_ipv4(sources: Iterable[IPv4Address]) -> _Program:
    program = [instruction(LOAD_WORD, _NETWORK_HEADER + 12)]
    for source in sources:
        program += [instruction(JUMP_IF_EQUAL, int(source), no=1), instruction(RETURN, _PASS)]
    return [*program, instruction(RETURN, _DROP)]


def _for_ipv6(sources: Iterable[IPv6Address]) -> _Program:
    program: _Program = []
    for index in range(4):  # once: a load from the header costs the kernel a function call
        program += [instruction(LOAD_WORD, _NETWORK_HEADER + 8 + 4 * index), instruction(_STORE_MEMORY, index)]
    for source in sources:
        for index, word in enumerate(struct.unpack("!4I", source.packed)):
            program.append(instruction(_LOAD_MEMORY, index))
            # A jump leads past the instructions for this address.
            program.append(instruction(JUMP_IF_EQUAL, word, no=7 - 2 * index))
        program.append(instruction(RETURN, _PASS))
    return [*program, instruction(RETURN, _DROP)]
