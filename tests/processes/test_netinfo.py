"""What hosts' addresses stand for, and which interface leads to them alone."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from pathlib import Path

import pytest

from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.os.network import Address, interface_for
from tfcluster.processes.netinfo import addresses_of


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


def write_routes(folder: Path, routes: dict[str, list[str]], *, ipv6: bool = True) -> None:
    """Write the kernel's tables: an interface with the networks that it leads to."""
    four, six = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"], []
    for interface, networks in routes.items():
        for network in networks:
            if ":" in network:
                wide = IPv6Network(network)
                zero = f"{'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000 00000001 {interface:>8}"
                six.append(f"{wide.network_address.packed.hex()} {wide.prefixlen:02x} {zero}")
            else:
                narrow = IPv4Network(network)
                words = [in_table(narrow.network_address), in_table(narrow.netmask)]
                four.append(f"{interface}\t{words[0]}\t00000000\t0001\t0\t0\t0\t{words[1]}\t0\t0\t0   ")
    (folder / "route").write_text("\n".join(four) + "\n")
    if ipv6:
        (folder / "ipv6_route").write_text("".join(f"{line}\n" for line in six))


def in_table(address: IPv4Address) -> str:
    return f"{struct.unpack('=I', address.packed)[0]:08X}"


EVERY_INTERFACE = ["fe80::/64", "ff00::/8"]


@pytest.mark.parametrize(
    ("routes", "cluster", "interface"),
    [
        ({"eth1": ["10.0.0.0/30"]}, ["10.0.0.1", "10.0.0.2"], "eth1"),
        ({"eth1": ["10.0.0.0/31"]}, ["10.0.0.0", "10.0.0.1"], "eth1"),
        ({"eth1": ["10.0.0.1/32", "10.0.0.2/32"]}, ["10.0.0.1", "10.0.0.2"], "eth1"),
        ({"eth0": ["0.0.0.0/0", "10.1.0.0/16"], "eth1": ["10.0.0.0/30"]}, ["10.0.0.1", "10.0.0.2"], "eth1"),
        ({"eth1": ["fd00::/127"]}, ["fd00::", "fd00::1"], "eth1"),
        (
            {"eth1": ["10.0.0.0/31", "fd00::/127", "fd00::1/128"]},
            ["10.0.0.0", "10.0.0.1", "fd00::", "fd00::1"],
            "eth1",
        ),
        # Others are on the network, or can come through it.
        ({"eth1": ["10.0.0.0/24"]}, ["10.0.0.1", "10.0.0.2"], None),
        ({"eth1": ["10.0.0.0/29"]}, ["10.0.0.1", "10.0.0.2"], None),
        ({"eth1": ["10.0.0.0/30", "0.0.0.0/0"]}, ["10.0.0.1", "10.0.0.2"], None),
        ({"eth1": ["10.0.0.0/30", "10.9.0.7/32"]}, ["10.0.0.1", "10.0.0.2"], None),
        ({"eth1": ["10.0.0.0/30", "fd00::/64"]}, ["10.0.0.1", "10.0.0.2"], None),
        # It does not lead to the whole cluster.
        ({"eth1": ["10.0.0.0/30"]}, ["10.0.0.1", "10.0.0.2", "10.0.1.2"], None),
        ({"eth1": ["10.0.0.0/30"], "eth2": ["10.0.1.0/30"]}, ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"], None),
        ({"eth1": []}, ["10.0.0.1"], None),
    ],
)
def test_the_interface_that_reaches_only_the_cluster(
    tmp_path: Path, routes: dict[str, list[str]], cluster: list[str], interface: str | None
) -> None:
    everything = {"lo": ["::1/128"], **{name: [*networks, *EVERY_INTERFACE] for name, networks in routes.items()}}
    write_routes(tmp_path, everything)
    assert interface_for(addresses(*cluster), tmp_path) == interface


def test_no_ipv6_is_no_route(tmp_path: Path) -> None:
    write_routes(tmp_path, {"eth1": ["10.0.0.0/30"]}, ipv6=False)
    assert interface_for(addresses("10.0.0.1", "10.0.0.2"), tmp_path) == "eth1"


def test_this_machine_s_tables_can_be_read() -> None:
    assert interface_for(addresses("192.0.2.1")) is None
