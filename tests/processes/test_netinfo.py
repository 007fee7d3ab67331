"""What hosts' addresses stand for."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.os.network import Address
from tfcluster.processes.servers.port_isolation import addresses_of


def addresses(*texts: str) -> frozenset[Address]:
    return frozenset(map(ip_address, texts))


def test_an_ip_address_is_itself() -> None:
    hosts = [Host("alpha", "10.0.0.1"), Host("beta", "fd00::2"), Host("gamma", "::ffff:10.0.0.3")]
    assert addresses_of(hosts) == addresses("10.0.0.1", "fd00::2", "10.0.0.3")


def test_this_machine_is_loopback() -> None:
    resolved = addresses_of([THIS_MACHINE])
    assert resolved
    assert all(address.is_loopback for address in resolved)


def test_a_name_resolves_to_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%eth0", 0, 0, 2)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.1.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert addresses_of([Host("alpha", "alpha.lan")]) == addresses("fe80::1", "10.0.0.1", "10.0.1.1")


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b", "x" * 64 + ".lan"])
def test_a_name_that_does_not_resolve_is_an_error_with_the_host(name: str) -> None:
    with pytest.raises(OSError, match=f"^host beta: its address '{name}' cannot be resolved on this machine"):
        addresses_of([Host("alpha", "127.0.0.1"), Host("beta", name)])
