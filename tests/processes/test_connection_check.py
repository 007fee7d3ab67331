"""What hosts find out by connecting to each other before a cluster starts: real sockets between network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import SCRIPTS, running
from tests.namespaces import Machine, Network, network
from tfcluster.protocol.api.cluster import LARGE_PACKETS_LOST

PORT = 4000

SCRIPT = (sys.executable, str(SCRIPTS / "connections.py"))


@pytest.fixture
def machines(needs_network: None) -> Iterator[Network]:
    with network("alpha", "beta") as made:
        yield made


@contextmanager
def answering(machine: Machine, *admitted: str, mode: str = "normal") -> Iterator[None]:
    command = machine.command(*SCRIPT, "answer", mode, str(PORT), *admitted)
    with running(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().strip() == "listens"
        yield


def check(machine: Machine, *addresses: str, seconds: float = 20.0) -> tuple[dict[str, str], dict[str, str]]:
    """Connect from a machine; return the failures, and what the others say where it comes from."""
    command = machine.command(*SCRIPT, "check", str(seconds), *addresses)
    failures, sources = json.loads(subprocess.check_output(command, timeout=90))
    return failures, sources


def places(machine: Machine) -> tuple[str, str]:
    return f"{machine.ipv4}:{PORT}", f"[{machine.ipv6}]:{PORT}"


def test_hosts_whose_addresses_are_known(machines: Network) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    with answering(alpha, beta.ipv4, beta.ipv6):
        assert check(beta, *places(alpha)) == ({}, {})
    assert check(beta, *places(alpha)) == (dict.fromkeys(places(alpha), "Connection refused"), {})


def test_connections_that_come_from_another_address(machines: Network) -> None:
    """A machine of several addresses, and one that prefers the later of its IPv6 addresses."""
    alpha, beta = machines["alpha"], machines["beta"]
    beta.ip("address", "add", "10.9.2.3/32", "dev", "lo")
    beta.ip("route", "add", alpha.ipv4, "dev", "eth0", "src", "10.9.2.3")
    alpha.ip("route", "add", "10.9.2.3", "dev", "eth0")
    beta.ip("address", "add", "fd77::99/64", "dev", "eth0", "nodad")
    beta.ip("address", "change", f"{beta.ipv6}/64", "dev", "eth0", "preferred_lft", "0")
    with answering(alpha, beta.ipv4, beta.ipv6):
        by_ipv4, by_ipv6 = places(alpha)
        assert check(beta, by_ipv4, by_ipv6) == ({}, {by_ipv4: "10.9.2.3", by_ipv6: "fd77::99"})


def test_a_way_that_loses_large_packets(machines: Network) -> None:
    """The switch forwards smaller packets than both machines send, and says nothing of those that it drops."""
    alpha, beta = machines["alpha"], machines["beta"]
    machines.narrow("alpha", 1200)
    with answering(alpha, beta.ipv4):
        assert check(beta, places(alpha)[0], seconds=0.5) == ({places(alpha)[0]: LARGE_PACKETS_LOST}, {})
        machines.narrow("alpha", 1500)
        assert check(beta, places(alpha)[0]) == ({}, {})


def test_one_that_accepts_and_says_nothing(machines: Network) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    with answering(alpha, mode="silent"):
        address = places(alpha)[0]
        assert check(beta, address, seconds=0.5) == ({address: "no answer within 0.5 s"}, {})


def test_a_connection_that_cannot_be_accepted_does_not_end_the_answers(machines: Network) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    with answering(beta, alpha.ipv4, mode="busy"):
        assert check(alpha, f"{beta.ipv4}:{PORT}") == ({}, {})
