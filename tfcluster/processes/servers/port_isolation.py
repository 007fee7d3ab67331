"""Port isolation: accept connections to the ports of a process only from this machine, or from its cluster's hosts.

A TensorFlow server listens on all interfaces, whatever address it is given, and executes any graph for anyone who
connects. Each socket is therefore restricted before it listens; `listen_guard` sees to the order.

A port of a cluster on several hosts gets a socket filter, in classic BPF, that passes packets from a list of source
addresses and drops all others. The filter of a listening TCP socket sees every segment from the SYN on, and every
connection that the socket accepts inherits it.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address

from tfcluster.processes.netinfo import Address, interface_for

#: The hint for hosts on which ports cannot be restricted.
OPEN_HINT = (
    "`network: private` in the spec takes no privilege, keeps all others out, other accounts too, and encrypts what "
    "hosts send each other; its price: only what `tfcluster run`, `launch` and `exec` start reaches the servers, and "
    "nothing else from in there. As root, `network: closed` is possible. `network: open` takes nothing, and every "
    "machine that can connect can run code as you: use it only where a firewall, or the network itself, keeps out "
    "non-members."
)
_LOOPBACK = "lo"
_INTERFACE_BYTES = 16  # IFNAMSIZ
# From linux/filter.h and asm-generic/socket.h; Python's socket module does not define them.
_SO_ATTACH_FILTER = 26
_SO_LOCK_FILTER = 44
_MAX_INSTRUCTIONS = 4096
_NETWORK_HEADER = -0x100000  # SKF_NET_OFF: the offset of the IPv4 or IPv6 header; offset 0 is the TCP header

_LOAD_WORD, _LOAD_BYTE, _LOAD_MEMORY, _STORE_MEMORY = 0x20, 0x30, 0x60, 0x02
_AND, _SHIFT_RIGHT = 0x54, 0x74
_JUMP, _JUMP_IF_EQUAL = 0x05, 0x15
_RETURN = 0x06
_PASS, _DROP = 0xFFFFFFFF, 0

_Program = list[bytes]


class PortIsolationError(Exception):
    """A port cannot be restricted to this machine or the cluster; the message says why."""


def restrict(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Restrict a TCP socket to connections from this machine and the rest of its cluster. This is idempotent.

    listen() has not been called on the socket yet. `cluster` includes the addresses of this host. A cluster on this
    machine alone is restricted to connections over loopback.

    Raises:
        PortIsolationError: The kernel refuses. For loopback it must be Linux 5.7 or newer, unless this process runs as
            root.
    """
    if all(address.is_loopback for address in cluster):
        _bind(listener, _LOOPBACK)
    else:
        restrict_to_peers(listener, cluster)


def restrict_to_peers(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Restrict a socket to connections from a cluster's addresses and from this machine.

    This attaches a filter to the socket. If this process may not do that, it binds the socket to the network interface
    that reaches only the cluster's hosts, if there is one. The socket then does not accept connections over loopback,
    but still accepts those to this machine's own address in the cluster, because the kernel attributes them to the
    interface that has the address.

    `cluster` includes the addresses of this host.

    Raises:
        PortIsolationError: The kernel refuses, or no interface reaches only the cluster.
    """
    if _has_locked_filter(listener):
        return
    try:
        attach_filter(listener, cluster)
    except PermissionError as error:
        interface = interface_for(cluster)
        if interface is None:
            raise PortIsolationError(
                f"the kernel lets only a process with CAP_NET_ADMIN choose who connects to {_named(listener)}, "
                "and no network interface leads to the cluster's hosts alone"
            ) from error
        _bind(listener, interface)
    except OSError as error:
        raise PortIsolationError(f"the kernel refused a filter on {_named(listener)}: {error.strerror}") from error


def _bind(listener: socket.socket, interface: str) -> None:
    # An unprivileged process can bind a socket to a device only once, so skip this if listen() is called again.
    device = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _INTERFACE_BYTES).rstrip(b"\0")
    if device == interface.encode():
        return
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except OSError as error:
        where = "loopback" if interface == _LOOPBACK else interface
        raise PortIsolationError(
            f"the kernel refused to bind {_named(listener)} to {where}: {error.strerror}"
        ) from error


def _named(listener: socket.socket) -> str:
    """Return a description of a socket's port for messages.

    A socket that is not bound to a port yet is the one of a check, or gets its port from listen().
    """
    port = listener.getsockname()[1]
    return f"port {port}" if port else "the servers' ports"


def attach_filter(listener: socket.socket, sources: Collection[Address]) -> None:
    """Attach a filter that passes packets only from a list of addresses and from this machine's loopback.

    The connections that the socket accepts inherit the filter. The socket does not respond to any other address, as if
    the packets were lost. The filter is locked, so it cannot be removed.

    Raises:
        PermissionError: This process may not attach a filter to a TCP socket (newer kernels require CAP_NET_ADMIN).
        OSError: The kernel refused for another reason, such as too many addresses.
    """
    instructions = _filter_program(sources)
    if len(instructions) > _MAX_INSTRUCTIONS:
        raise OSError(errno.E2BIG, f"{len(sources)} addresses are more than a socket's filter can hold")
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = struct.pack("HP", len(instructions), ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OSError(error.errno, f"{len(sources)} addresses take a larger sysctl net.core.optmem_max") from error
        raise
    listener.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def _has_locked_filter(listener: socket.socket) -> bool:
    """Return whether a socket has a filter that cannot be removed, such as that of `attach_filter`."""
    return bool(listener.getsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER))


def _filter_program(sources: Iterable[Address]) -> _Program:
    """Return the filter program for a list of source addresses, with one item per instruction."""
    ordered = sorted(set(sources), key=lambda address: (address.version, int(address)))
    for_ipv4 = _for_ipv4([each for each in ordered if isinstance(each, IPv4Address)])
    for_ipv6 = _for_ipv6([*(each for each in ordered if isinstance(each, IPv6Address)), IPv6Address("::1")])
    return [
        # A socket for IPv6 receives IPv4 too. The first four bits of both headers are the version.
        bpf_instruction(_LOAD_BYTE, _NETWORK_HEADER),
        bpf_instruction(_SHIFT_RIGHT, 4),
        bpf_instruction(_JUMP_IF_EQUAL, 4, yes=1),
        bpf_instruction(_JUMP, len(for_ipv4)),
        *for_ipv4,
        *for_ipv6,
    ]


def _for_ipv4(sources: Iterable[IPv4Address]) -> _Program:
    program = [bpf_instruction(_LOAD_WORD, _NETWORK_HEADER + 12)]
    for source in sources:
        program += [bpf_instruction(_JUMP_IF_EQUAL, int(source), no=1), bpf_instruction(_RETURN, _PASS)]
    # 127.0.0.0/8: the kernel drops packets that arrive from the network with such a source address.
    program += [bpf_instruction(_AND, 0xFF000000), bpf_instruction(_JUMP_IF_EQUAL, 0x7F000000, no=1)]
    return [*program, bpf_instruction(_RETURN, _PASS), bpf_instruction(_RETURN, _DROP)]


def _for_ipv6(sources: Iterable[IPv6Address]) -> _Program:
    program: _Program = []
    for index in range(4):  # once: a load from the header costs the kernel a function call
        program += [bpf_instruction(_LOAD_WORD, _NETWORK_HEADER + 8 + 4 * index), bpf_instruction(_STORE_MEMORY, index)]
    for source in sources:
        for index, word in enumerate(struct.unpack("!4I", source.packed)):
            program.append(bpf_instruction(_LOAD_MEMORY, index))
            # A jump leads past the instructions for this address.
            program.append(bpf_instruction(_JUMP_IF_EQUAL, word, no=7 - 2 * index))
        program.append(bpf_instruction(_RETURN, _PASS))
    return [*program, bpf_instruction(_RETURN, _DROP)]


def bpf_instruction(code: int, operand: int, yes: int = 0, no: int = 0) -> bytes:
    """Return a struct sock_filter.

    A jump skips `yes` instructions if its condition holds, and `no` instructions if it does not.
    """
    return struct.pack("=HBBI", code, yes, no, operand & 0xFFFFFFFF)
