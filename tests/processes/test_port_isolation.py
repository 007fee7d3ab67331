"""A port restricted to a cluster: its machines and its own connect, another one on the same network does not."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

import pytest

from tests.conftest import SCRIPTS, wait_for
from tests.namespaces import Machine, Network, network
from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.os.network import Address
from tfcluster.processes.servers.port_isolation import PortIsolationError, addresses_of, restrict_to_peers

PORT = 4000


def start(machine: Machine, script: str, *arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start one of the scripts of the tests on a machine, with PORT as its first argument."""
    command = machine.command(*before, sys.executable, str(SCRIPTS / script), str(PORT), *arguments)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def listening(
    machine: Machine,
    cluster: Sequence[str],
    *,
    families: str = "both in one",
    attaching: str = "tried",
    before: Sequence[str] = (),
) -> Iterator[str]:
    """Have a process on a machine listen as TensorFlow does; yield `listens`, or the reason why it may not.

    Without addresses of a cluster everyone may connect.
    """
    with start(machine, "restricted_port.py", families, attaching, *cluster, before=before) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def try_connect(machine: Machine, *addresses: str, seconds: float = 30) -> list[str]:
    """Connect from a machine to all addresses at once; return the result of each within some seconds."""
    return start(machine, "connects.py", str(seconds), *addresses).communicate(timeout=60)[0].split()


def is_ignored(machine: Machine, *addresses: str) -> bool:
    """Return whether a machine's connections get no answer, not even a refusal."""
    return try_connect(machine, *addresses, seconds=0.5) == ["TimeoutError"] * len(addresses)


def can_connect(machine: Machine, *addresses: str) -> bool:
    return try_connect(machine, *addresses) == ["connected"] * len(addresses)


@pytest.fixture(scope="module")
def machines(needs_network: None) -> Iterator[Network]:
    with network("alpha", "beta", "other") as machines:
        yield machines


def addresses(machines: Network, *names: str) -> list[str]:
    return [address for name in names for address in (machines[name].ipv4, machines[name].ipv6)]


def test_without_a_restriction_everyone_connects(machines: Network) -> None:
    with listening(machines["alpha"], []) as status:
        assert status == "listens"
        assert can_connect(machines["other"], machines["alpha"].ipv4, machines["alpha"].ipv6)


@pytest.mark.parametrize(("families", "further"), [("both in one", 0), ("one each", 99)])
def test_only_the_cluster_connects(machines: Network, families: str, further: int) -> None:
    alpha, beta, other = (machines[name] for name in ("alpha", "beta", "other"))
    others = [f"{network}{number}" for number in range(1, further + 1) for network in ("10.1.0.", "fd01::")]
    with listening(alpha, [*others, *addresses(machines, "alpha", "beta")], families=families) as status:
        assert status == "listens"
        assert can_connect(beta, alpha.ipv4, alpha.ipv6)
        assert can_connect(alpha, alpha.ipv4, alpha.ipv6, "127.0.0.1", "127.0.1.1", "::1")
        assert is_ignored(other, alpha.ipv4, alpha.ipv6)


@pytest.fixture
def multihomed(needs_network: None) -> Iterator[Network]:
    """Machines of which alpha has further addresses of each kind; what it sends itself leaves from the first one."""
    with network("alpha", "beta", "other") as machines:
        alpha = machines["alpha"]
        alpha.ip("address", "add", "10.77.0.101/24", "dev", "eth0")
        alpha.ip("address", "add", "10.99.0.1/32", "dev", "lo")
        alpha.ip("address", "add", "fd77::101/64", "dev", "eth0", "nodad", "preferred_lft", "0")
        yield machines


SECOND = ("10.77.0.101", "10.99.0.1", "fd77::101")


def test_the_machine_connects_whichever_of_its_addresses_the_spec_names(multihomed: Network) -> None:
    alpha, beta, other = (multihomed[name] for name in ("alpha", "beta", "other"))
    for named in SECOND:
        with listening(alpha, [named, beta.ipv4, beta.ipv6]) as status:
            assert status == "listens", named
            assert can_connect(alpha, *SECOND, alpha.ipv4, alpha.ipv6, "127.0.0.1", "127.0.1.1", "::1"), named
            assert can_connect(beta, alpha.ipv4, alpha.ipv6, "10.77.0.101", "fd77::101"), named
            assert is_ignored(other, alpha.ipv4, alpha.ipv6, "10.77.0.101", "fd77::101"), named


def test_no_other_machine_is_taken_for_the_machine(multihomed: Network) -> None:
    """It sends from the machine's own addresses, to a kernel that is told to accept such packets."""
    alpha, other = multihomed["alpha"], multihomed["other"]
    for name in ("accept_local", "route_localnet"):
        subprocess.run(alpha.command("sysctl", "-qw", f"net.ipv4.conf.eth0.{name}=1"), check=True)

    def spoof(answers: int) -> None:
        """Check how many of four segments the sockets answer; an answer goes to alpha itself, where it is refused."""
        before = counters(alpha)
        for to, sources in ((alpha.ipv4, ["10.77.0.101", "10.99.0.1", "127.0.0.1"]), (alpha.ipv6, ["fd77::101"])):
            start(other, "spoofs.py", to, *sources).communicate(timeout=60)
        wait_for(lambda: counters(alpha)["InSegs"] >= before["InSegs"] + 4 + 2 * answers)
        assert counters(alpha)["OutRsts"] == before["OutRsts"] + answers

    with listening(alpha, []):
        spoof(answers=4)
    with listening(alpha, addresses(multihomed, "beta")):
        spoof(answers=0)


def counters(machine: Machine) -> dict[str, int]:
    """Return the counters of TCP on a machine, for both versions of IP."""
    table = subprocess.check_output(machine.command("cat", "/proc/net/snmp"), text=True)
    names, values = (line.split()[1:] for line in table.splitlines() if line.startswith("Tcp:"))
    return dict(zip(names, map(int, values), strict=True))


@pytest.mark.needs("network")
def test_who_has_taken_the_address_of_a_member_connects() -> None:
    """What docs/network.md says of another machine on the same network: the filter knows addresses only."""
    with network("alpha", "beta", "other") as machines:
        alpha, beta, other = (machines[name] for name in ("alpha", "beta", "other"))
        with listening(alpha, addresses(machines, "alpha", "beta")) as status:
            assert status == "listens"
            assert is_ignored(other, alpha.ipv4)
            bits = 24
            beta.ip("address", "flush", "dev", "eth0")
            other.ip("address", "flush", "dev", "eth0")
            other.ip("address", "add", f"{beta.ipv4}/{bits}", "dev", "eth0")
            assert can_connect(other, alpha.ipv4)


def test_each_family_has_a_list_of_its_own(machines: Network) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    for cluster, by, not_by in (
        ([alpha.ipv4, beta.ipv4], alpha.ipv4, alpha.ipv6),
        ([alpha.ipv6, beta.ipv6], alpha.ipv6, alpha.ipv4),
    ):
        with listening(alpha, cluster) as status:
            assert status == "listens"
            assert can_connect(beta, by)
            assert is_ignored(beta, not_by)


def test_without_a_filter_the_port_cannot_be_restricted(machines: Network) -> None:
    with listening(machines["alpha"], addresses(machines, "alpha", "beta"), attaching="refused") as status:
        assert status == f"the kernel lets only a process with CAP_NET_ADMIN choose who connects to port {PORT}"


def test_without_the_capability_a_port_is_restricted_or_reported(machines: Network) -> None:
    """Older kernels let anybody attach a filter."""
    alpha, other = machines["alpha"], machines["other"]
    without = ["setpriv", "--bounding-set", "-net_admin,-net_raw"]
    with listening(alpha, addresses(machines, "alpha", "beta"), before=without) as status:
        assert status == "listens" or "CAP_NET_ADMIN" in status
        if status == "listens":
            assert is_ignored(other, alpha.ipv4)


def test_too_many_addresses_or_too_little_memory_for_them_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    addresses = [ip_address("10.0.0.0") + number for number in range(3000)]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(PortIsolationError, match=f"port {port}: 3000 addresses do not fit in a socket's filter\n"):
            restrict_to_peers(listener, addresses)
        monkeypatch.setattr(socket.socket, "setsockopt", refuse)
        message = f"port {port}: 300 addresses require a larger sysctl net.core.optmem_max\n"
        with pytest.raises(PortIsolationError, match=message):
            restrict_to_peers(listener, addresses[:300])


def parsed(*texts: str) -> frozenset[Address]:
    return frozenset(map(ip_address, texts))


def test_an_ip_address_is_itself() -> None:
    hosts = [Host("alpha", "10.0.0.1"), Host("beta", "fd00::2"), Host("gamma", "::ffff:10.0.0.3")]
    assert addresses_of(hosts) == parsed("10.0.0.1", "fd00::2", "10.0.0.3")


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
    assert addresses_of([Host("alpha", "alpha.lan")]) == parsed("fe80::1", "10.0.0.1", "10.0.1.1")


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b", "x" * 64 + ".lan"])
def test_a_name_that_does_not_resolve_is_an_error_with_the_host(name: str) -> None:
    with pytest.raises(OSError, match=f"^host beta: its address '{name}' cannot be resolved on this machine"):
        addresses_of([Host("alpha", "127.0.0.1"), Host("beta", name)])
