"""A port closed to strangers: its cluster's machines and its own connect, another on the same network does not."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

import pytest

from tests.conftest import ROOT
from tests.namespaces import Machine, Network, network
from tfcluster.runtime.addresses import Address
from tfcluster.runtime.closed import NotClosedError, close_to_strangers

PORT = 4000

_LISTEN = f"""
import socket, sys
from ipaddress import ip_address
from tfcluster.runtime import closed, source_filter

sockets, attaching, *cluster = sys.argv[1:]
def refuse(*arguments):
    raise PermissionError(1, "Operation not permitted")
if attaching == "refused":
    source_filter.attach = refuse
if sockets == "one":
    listeners = [socket.create_server(("", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)]
else:
    listeners = [socket.create_server(("", {PORT}), family=each) for each in (socket.AF_INET, socket.AF_INET6)]
print("listens", flush=True)
sys.stdin.readline()
try:
    closed.close_to_strangers({PORT}, frozenset(map(ip_address, cluster)))
    print("closed", flush=True)
except closed.NotClosedError as error:
    print(error, flush=True)
sys.stdin.readline()
"""

_DIAL = f"""
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def dial(address):
    try:
        socket.create_connection((address, {PORT}), float(sys.argv[1])).close()
        return "connected"
    except OSError as error:
        return type(error).__name__

with ThreadPoolExecutor() as threads:
    print(*threads.map(dial, sys.argv[2:]))
"""

_STAY = f"""
import socket, sys
dialled = socket.create_connection((sys.argv[1], {PORT}), 30)
print("connected", flush=True)
print("cut off" if dialled.recv(1) == b"" else "answered")
"""


def python(machine: Machine, program: str, *arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a program on a machine."""
    return subprocess.Popen(
        machine.command(*before, sys.executable, "-c", program, *arguments),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Listener:
    """A process on a machine that listens as TensorFlow does, serves nothing, and closes its port when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._read() == "listens"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close_port(self) -> str:
        """What came of it: `closed`, or the error."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()


@contextlib.contextmanager
def listening(
    machine: Machine,
    cluster: Sequence[str],
    *,
    sockets: str = "one",
    attaching: str = "tried",
    before: Sequence[str] = (),
) -> Iterator[Listener]:
    with python(machine, _LISTEN, sockets, attaching, *cluster, before=before) as process:
        try:
            yield Listener(process)
        finally:
            process.kill()


def dial(machine: Machine, *addresses: str, seconds: float = 30) -> list[str]:
    """What connections from a machine come to within some seconds, all of them begun at once."""
    return python(machine, _DIAL, str(seconds), *addresses).communicate(timeout=60)[0].split()


def stays_outside(machine: Machine, *addresses: str) -> bool:
    """Whether a machine's connections come to nothing: it is not even refused."""
    return dial(machine, *addresses, seconds=1) == ["TimeoutError"] * len(addresses)


def connects(machine: Machine, *addresses: str) -> bool:
    return dial(machine, *addresses) == ["connected"] * len(addresses)


@pytest.fixture(scope="module")
def machines() -> Iterator[Network]:
    with network("alpha", "beta", "stranger") as made:
        yield made


def addresses(made: Network, *names: str) -> list[str]:
    return [address for name in names for address in (made[name].ipv4, made[name].ipv6)]


@pytest.mark.parametrize("sockets", ["one", "two"])
def test_only_the_cluster_connects(machines: Network, sockets: str) -> None:
    alpha, beta, stranger = (machines[name] for name in ("alpha", "beta", "stranger"))
    with listening(alpha, addresses(machines, "alpha", "beta"), sockets=sockets) as listener:
        assert connects(stranger, alpha.ipv4, alpha.ipv6)
        assert listener.close_port() == "closed"
        assert connects(beta, alpha.ipv4, alpha.ipv6)
        assert connects(alpha, alpha.ipv4, alpha.ipv6, "127.0.0.1", "127.0.1.1", "::1")
        assert stays_outside(stranger, alpha.ipv4, alpha.ipv6)


def test_each_family_has_a_list_of_its_own(machines: Network) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    for cluster, by, not_by in (
        ([alpha.ipv4, beta.ipv4], alpha.ipv4, alpha.ipv6),
        ([alpha.ipv6, beta.ipv6], alpha.ipv6, alpha.ipv4),
    ):
        with listening(alpha, cluster) as listener:
            assert listener.close_port() == "closed"
            assert connects(beta, by)
            assert stays_outside(beta, not_by)


def test_a_hundred_hosts(machines: Network) -> None:
    alpha, beta, stranger = (machines[name] for name in ("alpha", "beta", "stranger"))
    others = [f"{network}{number}" for number in range(1, 100) for network in ("10.1.0.", "fd01::")]
    with listening(alpha, [*others, beta.ipv4, beta.ipv6]) as listener:
        assert listener.close_port() == "closed"
        assert connects(beta, alpha.ipv4, alpha.ipv6)
        assert stays_outside(stranger, alpha.ipv4, alpha.ipv6)


def test_a_stranger_who_connected_before_is_cut_off(machines: Network) -> None:
    alpha, stranger = machines["alpha"], machines["stranger"]
    with (
        listening(alpha, addresses(machines, "alpha", "beta")) as listener,
        python(stranger, _STAY, alpha.ipv4) as early,
    ):
        assert early.stdout is not None
        assert early.stdout.readline() == "connected\n"
        assert listener.close_port() == "closed"
        assert early.stdout.readline() == "cut off\n"


def test_where_a_filter_is_refused_the_interface_to_the_cluster_serves() -> None:
    with network("alpha", "beta", ipv4_bits=30) as cable:
        alpha, beta = cable["alpha"], cable["beta"]
        alpha.ip("-6", "address", "flush", "dev", "eth0", "scope", "global")
        with listening(alpha, [alpha.ipv4, beta.ipv4], attaching="refused") as listener:
            assert listener.close_port() == "closed"
            assert connects(beta, alpha.ipv4)
            # What comes another way than by the cable is refused.
            assert dial(alpha, alpha.ipv4, "127.0.0.1") == ["connected", "ConnectionRefusedError"]


def test_where_a_filter_is_refused_and_others_are_on_the_network_the_port_is_not_closed(machines: Network) -> None:
    with listening(machines["alpha"], addresses(machines, "alpha", "beta"), attaching="refused") as listener:
        assert listener.close_port() == (
            f"the kernel lets only a process with CAP_NET_ADMIN choose who connects to port {PORT}, "
            "and no network interface leads to the cluster's hosts and nobody else"
        )


def test_without_the_capability_a_port_is_closed_or_said_not_to_be(machines: Network) -> None:
    """Older kernels let anybody attach a filter."""
    alpha, stranger = machines["alpha"], machines["stranger"]
    without = ["setpriv", "--bounding-set", "-net_admin,-net_raw"]
    with listening(alpha, addresses(machines, "alpha", "beta"), before=without) as listener:
        said = listener.close_port()
        assert said == "closed" or "CAP_NET_ADMIN" in said
        assert (stays_outside if said == "closed" else connects)(stranger, alpha.ipv4)


@pytest.fixture
def port() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def many_addresses() -> list[Address]:
    return [ip_address("10.0.0.0") + number for number in range(3000)]


def test_too_many_addresses_are_an_error(port: int) -> None:
    with pytest.raises(NotClosedError, match=f"port {port}: 3000 addresses are more than a socket's filter can hold$"):
        close_to_strangers(port, many_addresses())


def test_too_little_memory_for_the_addresses_is_an_error(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(socket.socket, "setsockopt", refuse)
    with pytest.raises(NotClosedError, match=f"port {port}: 300 addresses take a larger sysctl net.core.optmem_max$"):
        close_to_strangers(port, many_addresses()[:300])
