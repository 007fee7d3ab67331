"""Socket filters in classic BPF that pass packets from a list of source addresses and drop all others.

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

# From linux/filter.h and asm-generic/socket.h; Python's socket module does not define them.
_SO_ATTACH_FILTER = 26
_SO_LOCK_FILTER = 44
_MAX_INSTRUCTIONS = 4096
_NETWORK_HEADER = -0x100000  # SKF_NET_OFF: the offset of the IPv4 or IPv6 header; offset 0 is the TCP header

_LOAD_WORD, _LOAD_BYTE, _LOAD_KEPT, _KEEP = 0x20, 0x30, 0x60, 0x02
_AND, _SHIFT_RIGHT = 0x54, 0x74
_JUMP, _JUMP_IF_EQUAL = 0x05, 0x15
_RETURN = 0x06
_PASS, _DROP = 0xFFFFFFFF, 0

_Program = list[bytes]


def attach(listener: socket.socket, sources: Collection[IPv4Address | IPv6Address]) -> None:
    """Attach a filter that passes packets only from a list of addresses and from this machine's loopback.

    The connections that the socket accepts inherit the filter. The socket does not respond to any other address, as if
    the packets were lost. The filter is locked, so it cannot be removed.

    Args:
        listener: The socket.
        sources: The addresses.

    Raises:
        PermissionError: This process may not attach a filter to a TCP socket (newer kernels require CAP_NET_ADMIN).
        OSError: The kernel refused for another reason, such as too many addresses.
    """
    instructions = program(sources)
    if len(instructions) > _MAX_INSTRUCTIONS:
        raise OSError(errno.E2BIG, f"{len(sources)} addresses are more than a socket's filter can hold")
    code = ctypes.create_string_buffer(b"".join(instructions))
    described = struct.pack("HP", len(instructions), ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OSError(error.errno, f"{len(sources)} addresses take a larger sysctl net.core.optmem_max") from error
        raise
    listener.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def is_locked(listener: socket.socket) -> bool:
    """Tell whether a socket has a filter that cannot be removed, such as that of `attach`."""
    return bool(listener.getsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER))


def program(sources: Iterable[IPv4Address | IPv6Address]) -> _Program:
    """Return the filter program for a list of source addresses, with one item per instruction."""
    ordered = sorted(set(sources), key=lambda address: (address.version, int(address)))
    for_ipv4 = _for_ipv4([each for each in ordered if isinstance(each, IPv4Address)])
    for_ipv6 = _for_ipv6([*(each for each in ordered if isinstance(each, IPv6Address)), IPv6Address("::1")])
    return [
        # A socket for IPv6 receives IPv4 too. The first four bits of both headers are the version.
        _instruction(_LOAD_BYTE, _NETWORK_HEADER),
        _instruction(_SHIFT_RIGHT, 4),
        _instruction(_JUMP_IF_EQUAL, 4, yes=1),
        _instruction(_JUMP, len(for_ipv4)),
        *for_ipv4,
        *for_ipv6,
    ]


def _for_ipv4(sources: Iterable[IPv4Address]) -> _Program:
    made = [_instruction(_LOAD_WORD, _NETWORK_HEADER + 12)]
    for source in sources:
        made += [_instruction(_JUMP_IF_EQUAL, int(source), no=1), _instruction(_RETURN, _PASS)]
    # 127.0.0.0/8: the kernel drops packets that arrive from the network with such a source address.
    made += [_instruction(_AND, 0xFF000000), _instruction(_JUMP_IF_EQUAL, 0x7F000000, no=1)]
    return [*made, _instruction(_RETURN, _PASS), _instruction(_RETURN, _DROP)]


def _for_ipv6(sources: Iterable[IPv6Address]) -> _Program:
    made: _Program = []
    for place in range(4):  # once: a load from the header costs the kernel a function call
        made += [_instruction(_LOAD_WORD, _NETWORK_HEADER + 8 + 4 * place), _instruction(_KEEP, place)]
    for source in sources:
        for place, word in enumerate(struct.unpack("!4I", source.packed)):
            made.append(_instruction(_LOAD_KEPT, place))
            made.append(_instruction(_JUMP_IF_EQUAL, word, no=7 - 2 * place))  # jump past this address's instructions
        made.append(_instruction(_RETURN, _PASS))
    return [*made, _instruction(_RETURN, _DROP)]


def _instruction(code: int, operand: int, yes: int = 0, no: int = 0) -> bytes:
    """Return a struct sock_filter.

    Args:
        code: The operation.
        operand: Its operand.
        yes: The number of instructions that a jump skips if its condition holds.
        no: The number of instructions that a jump skips if it does not.
    """
    return struct.pack("=HBBI", code, yes, no, operand & 0xFFFFFFFF)
