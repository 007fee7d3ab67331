"""A packet filter on a socket that lets through what comes from given addresses and drops the rest.

It is a program for the kernel's classic BPF machine. That of a listening TCP socket sees every segment from the SYN
on, and every connection that the socket accepts inherits it.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address

# linux/filter.h, asm-generic/socket.h; Python's socket has none of them.
_SO_ATTACH_FILTER = 26
_SO_LOCK_FILTER = 44
_MAX_INSTRUCTIONS = 4096
_NETWORK_HEADER = -0x100000  # offset 0 is the TCP header; this one, of IPv4's or IPv6's

_LOAD_WORD, _LOAD_BYTE, _LOAD_KEPT, _KEEP = 0x20, 0x30, 0x60, 0x02
_AND, _SHIFT_RIGHT = 0x54, 0x74
_JUMP, _JUMP_IF_EQUAL = 0x05, 0x15
_RETURN = 0x06
_PASS, _DROP = 0xFFFFFFFF, 0

_Program = list[bytes]


def attach(listener: socket.socket, sources: Collection[IPv4Address | IPv6Address]) -> None:
    """Have a socket, and those that it accepts, receive only from some addresses and from this machine's loopback.

    To everybody else the socket does not answer at all, as if packets got lost. Nobody can take the filter off again.

    Raises:
        PermissionError: This process may not filter TCP (newer kernels want CAP_NET_ADMIN).
        OSError: The kernel refused for another reason; too many addresses are one.
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
    """Tell whether a socket has a filter that cannot be taken off, as `attach` leaves it."""
    return bool(listener.getsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER))


def program(sources: Iterable[IPv4Address | IPv6Address]) -> _Program:
    """The program, an item per instruction."""
    ordered = sorted(set(sources), key=lambda address: (address.version, int(address)))
    for_ipv4 = _for_ipv4([each for each in ordered if isinstance(each, IPv4Address)])
    for_ipv6 = _for_ipv6([*(each for each in ordered if isinstance(each, IPv6Address)), IPv6Address("::1")])
    return [
        # A socket for IPv6 takes IPv4 along: the version is the first four bits of either's header.
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
    # 127.0.0.0/8: the kernel drops what claims to come from there and does not.
    made += [_instruction(_AND, 0xFF000000), _instruction(_JUMP_IF_EQUAL, 0x7F000000, no=1)]
    return [*made, _instruction(_RETURN, _PASS), _instruction(_RETURN, _DROP)]


def _for_ipv6(sources: Iterable[IPv6Address]) -> _Program:
    made: _Program = []
    for place in range(4):  # a load from a header takes the kernel a call
        made += [_instruction(_LOAD_WORD, _NETWORK_HEADER + 8 + 4 * place), _instruction(_KEEP, place)]
    for source in sources:
        for place, word in enumerate(struct.unpack("!4I", source.packed)):
            made.append(_instruction(_LOAD_KEPT, place))
            made.append(_instruction(_JUMP_IF_EQUAL, word, no=7 - 2 * place))  # past this address's last instruction
        made.append(_instruction(_RETURN, _PASS))
    return [*made, _instruction(_RETURN, _DROP)]


def _instruction(code: int, operand: int, yes: int = 0, no: int = 0) -> bytes:
    """A struct sock_filter; `yes` and `no` are how many instructions are skipped then."""
    return struct.pack("=HBBI", code, yes, no, operand & 0xFFFFFFFF)
