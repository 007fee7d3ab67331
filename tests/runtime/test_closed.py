"""Closing a port to other machines: this process's listening sockets on it, and no others, end up bound to loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tfcluster.runtime.closed import NotClosedError, close_to_other_machines


def device_of(listener: socket.socket) -> bytes:
    """The device that a socket is bound to; empty when it is to none."""
    return listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0")


def listening(family: socket.AddressFamily, port: int = 0, *, only_ipv6: bool = False) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_ipv6))
    made.bind(("", port))
    made.listen()
    return made


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A server for IPv4, and one for IPv6 that takes IPv4 along."""
    with listening(request.param) as made:
        yield made


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_a_listening_socket_is_bound_to_loopback(listener: socket.socket) -> None:
    assert device_of(listener) == b""
    close_to_other_machines(port_of(listener))
    assert device_of(listener) == b"lo"


def test_this_machine_still_connects(listener: socket.socket) -> None:
    close_to_other_machines(port_of(listener))
    with socket.create_connection(("127.0.0.1", port_of(listener))) as client, listener.accept()[0] as accepted:
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"


def test_two_sockets_on_the_port_are_both_closed() -> None:
    with listening(socket.AF_INET) as four, listening(socket.AF_INET6, port_of(four), only_ipv6=True) as six:
        close_to_other_machines(port_of(four))
        assert (device_of(four), device_of(six)) == (b"lo", b"lo")


def test_other_sockets_stay_as_they_are(listener: socket.socket) -> None:
    with (
        listening(socket.AF_INET) as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_connection(("127.0.0.1", port_of(other))) as client,
        other.accept()[0] as accepted,
    ):
        datagrams.bind(("", port_of(listener)))
        close_to_other_machines(port_of(listener))
        assert [device_of(each) for each in (other, datagrams, client, accepted)] == [b""] * 4
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"


@pytest.mark.parametrize("accepted", [False, True])
def test_who_connected_before_is_cut_off(listener: socket.socket, accepted: bool) -> None:
    with socket.create_connection(("127.0.0.1", port_of(listener)), 30) as early, ExitStack() as stack:
        if accepted:
            stack.enter_context(listener.accept()[0])
        close_to_other_machines(port_of(listener))
        assert early.recv(1) == b""


def test_no_socket_on_the_port_is_an_error() -> None:
    with listening(socket.AF_INET) as listener:
        port = port_of(listener)
    with pytest.raises(NotClosedError, match=f"^found no listening socket on port {port} to close$"):
        close_to_other_machines(port)


def test_a_socket_that_does_not_listen_yet_is_an_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind(("", 0))
        with pytest.raises(NotClosedError, match="no listening socket"):
            close_to_other_machines(port_of(bound))
        assert device_of(bound) == b""


@pytest.fixture
def packed_descriptors() -> Iterator[None]:
    """No free descriptor below one in use, so that the next ones opened get the next numbers."""
    with ExitStack() as stack:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        while stack.enter_context(open(os.devnull)).fileno() <= highest:
            continue
        yield


@pytest.mark.usefixtures("packed_descriptors")
def test_a_kernel_that_refuses_is_an_error_that_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with listening(socket.AF_INET) as listener:
        port = port_of(listener)
        before = os.listdir("/proc/self/fd")
        monkeypatch.setattr(socket.socket, "setsockopt", refuse)
        with pytest.raises(NotClosedError, match=f"bind port {port} to loopback: Operation not permitted"):
            close_to_other_machines(port)
        assert os.listdir("/proc/self/fd") == before


def test_no_descriptor_is_left_and_the_server_is_not_closed(listener: socket.socket) -> None:
    before = os.listdir("/proc/self/fd")
    close_to_other_machines(port_of(listener))
    assert os.listdir("/proc/self/fd") == before
    with socket.create_connection(("127.0.0.1", port_of(listener))):
        pass
