"""Ports that an agent reserves: refused to others, open to the task's own server, and released."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from tfcluster import settings
from tfcluster.agent.ports import PortAllocator
from tfcluster.errors import ClusterError


def stream(family: socket.AddressFamily = socket.AF_INET6, *options: int) -> socket.socket:
    """A socket for every address of the machine, with options of SOL_SOCKET set."""
    created = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    for option in options:
        created.setsockopt(socket.SOL_SOCKET, option, 1)
    return created


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server on a port that the kernel chose, with the options of gRPC's."""
    with stream(socket.AF_INET6, socket.SO_REUSEADDR) as server:
        server.bind(("", 0))
        server.listen()
        yield server


def may_bind(port: int, family: socket.AddressFamily = socket.AF_INET6, address: str = "") -> bool:
    with stream(family) as binder:
        try:
            binder.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True


def may_connect(port: int) -> bool:
    with socket.socket() as dialling:
        return dialling.connect_ex(("127.0.0.1", port)) == 0


def test_a_reserved_port_is_bound_by_nobody_else_until_it_is_released(port: int, ports: PortAllocator) -> None:
    other = PortAllocator()
    for _ in range(2):  # the same agent may reserve it twice
        assert ports.reserve(port)
    assert not may_bind(port)
    assert not may_bind(port, socket.AF_INET)
    assert not may_bind(port, socket.AF_INET, "127.0.0.1")
    assert not may_bind(port, socket.AF_INET6, "::1")
    assert not may_connect(port)
    assert not other.reserve(port)
    assert ports.owner(port).startswith("a process that does not listen on it")
    ports.release_except(())
    assert may_bind(port)
    assert other.reserve(port)
    other.release_except(())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("options", [[socket.SO_REUSEADDR], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]])
def test_the_tasks_server_binds_the_reserved_port(
    port: int, ports: PortAllocator, family: socket.AddressFamily, options: list[int]
) -> None:
    assert ports.reserve(port)
    for _ in range(2):  # and again after a restart
        with stream(family, *options) as server:
            server.bind(("", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as accepted:
                accepted.sendall(b"x")
                assert client.recv(1) == b"x"


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET6, ""), (socket.AF_INET, "127.0.0.1")])
def test_a_port_with_a_listener_is_not_reserved(
    ports: PortAllocator, family: socket.AddressFamily, address: str
) -> None:
    with stream(family, socket.SO_REUSEADDR) as server:
        server.bind((address, 0))
        server.listen()
        assert not ports.reserve(server.getsockname()[1])
        assert may_connect(server.getsockname()[1])


def test_the_owner_of_a_port_is_described(listener: socket.socket, ports: PortAllocator) -> None:
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read().replace(b"\0", b" ").decode().strip()
    assert ports.owner(listener.getsockname()[1]) == f"process {os.getpid()} ({command[:80]})"


def test_lingering_connections_do_not_block_a_port_and_do_not_hide_that_it_is_reserved(
    listener: socket.socket, ports: PortAllocator
) -> None:
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        listener.accept()[0].close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
    listener.close()
    other = PortAllocator()
    assert not may_bind(port)
    assert ports.reserve(port)
    assert not other.reserve(port), "its server may be between two processes"


def test_allocation_skips_taken_and_reserved_ports_and_too_few_are_an_error(
    listener: socket.socket, ports: PortAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = listener.getsockname()[1]
    monkeypatch.setattr(settings, "FIRST_PORT", first)
    monkeypatch.setattr(settings, "LAST_PORT", first)
    with pytest.raises(ClusterError, match=f"^no free port between {first} and {first}$"):
        list(ports.allocate(1))
    assert list(ports.allocate(0)) == []
    monkeypatch.setattr(settings, "LAST_PORT", 65535)
    [held] = ports.allocate(1)
    assert held > first
    chosen = list(ports.allocate(3))
    assert chosen == sorted(set(chosen))
    assert chosen[0] > held
    assert not any(map(may_bind, chosen))


def test_a_port_that_needs_privileges_is_an_error(ports: PortAllocator, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(PermissionError):
        ports.reserve(80)
    assert os.listdir("/proc/self/fd") == before


def test_ports_are_reserved_without_ipv6(port: int, ports: PortAllocator, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    assert ports.reserve(port)
    monkeypatch.undo()
    assert not may_bind(port, socket.AF_INET)


def test_a_locked_port_is_reserved_once_its_server_has_exited(listener: socket.socket, ports: PortAllocator) -> None:
    port = listener.getsockname()[1]
    other = PortAllocator()
    other.lock(port)
    ports.lock(port)
    assert not ports.reserve(port), "another agent has it"
    other.release_except(())
    for _ in range(2):
        ports.lock(port)
    assert not ports.reserve(port), "its server listens"
    with socket.create_connection(("127.0.0.1", port)):
        listener.accept()[0].close()
    listener.close()
    assert not other.reserve(port), "another agent's choice passes it by"
    assert ports.reserve(port)
    assert not may_bind(port)
    with stream(socket.AF_INET6, socket.SO_REUSEADDR) as server:  # the next process of the task
        server.bind(("", port))
        server.listen()


def test_no_descriptor_is_left(port: int, listener: socket.socket) -> None:
    before = os.listdir("/proc/self/fd")
    ports = PortAllocator()
    assert ports.reserve(port)
    assert not ports.reserve(listener.getsockname()[1])
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    ports.lock(listener.getsockname()[1])
    assert len(os.listdir("/proc/self/fd")) == len(before) + 3
    ports.release_except(())
    assert os.listdir("/proc/self/fd") == before
    assert may_bind(port)
    ports.release_except(())  # once more says nothing


def test_a_reserved_port_listens_temporarily(ports: PortAllocator, port: int) -> None:
    assert ports.reserve(port)
    assert not may_connect(port)
    for _ in range(2):
        with ports.listen_temporarily({port, 1}) as open_ones:
            assert [each.getsockname()[1] for each in open_ones] == [port], "one that is not held is not listened on"
            assert may_connect(port)
            with ports.listen_temporarily({port}):
                assert may_connect(port)
            assert may_connect(port), "another thread still uses it"
        assert not may_connect(port)
        assert not may_bind(port)
        with stream(socket.AF_INET6, socket.SO_REUSEADDR) as server:  # the task's own
            server.bind(("", port))
            server.listen()


def test_a_port_stops_listening_for_its_server_and_does_not_listen_beside_it(ports: PortAllocator, port: int) -> None:
    assert ports.reserve(port)
    with ports.listen_temporarily({port}):
        ports.stop_listening()
        assert not may_connect(port)
    assert not may_bind(port)
    with stream(socket.AF_INET6, socket.SO_REUSEADDR) as server:
        server.bind(("", port))
        server.listen()
        with ports.listen_temporarily({port}) as open_ones:
            assert open_ones == []
        assert may_connect(port)
