"""A real server of a cluster on two machines: it answers both of them, and no other machine on their network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Hosts
from tests.conftest import ROOT, SCRIPTS, running
from tests.namespaces import Machine, Network
from tfcluster.core.hosts import Host
from tfcluster.core.topology import ClusterTopology, RestartPolicy, Task
from tfcluster.protocol.serialization import to_json

PORT = 4000

_SERVE = (SCRIPTS / "serve_task.py").read_text()

_ASK = (SCRIPTS / "ask_server.py").read_text()


HOSTS = Hosts(strangers=("alpha", "beta", "stranger"), has_sshd=False)


def topology_of(network_word: str, *hosts: Host) -> ClusterTopology:
    restart = RestartPolicy("never", 0.1, 1.0, 5, 60.0)
    task = Task("worker", 0, hosts[0].name, hosts[0].address, PORT, 1, 0, {}, restart)
    return ClusterTopology("far", "far.yaml", network_word, (task,), hosts=hosts)


@contextmanager
def serving(machine: Machine, topology: ClusterTopology, folder: Path, before: str = "") -> Iterator[dict[str, Any]]:
    """What a server's process on a machine says once it serves, or does not; it lives while the block runs."""
    ours, theirs = socket.socketpair()
    arguments = (json.dumps(to_json(topology)), str(folder / "log"), str(theirs.fileno()))
    command = machine.command(sys.executable, "-c", before + _SERVE, *arguments)
    with ours, theirs, running(*command, cwd=ROOT, pass_fds=[theirs.fileno()]):
        theirs.close()
        yield json.loads(ours.makefile().readline())


def ask(machine: Machine, address: str, seconds: float = 30) -> str:
    """What the server answers to a machine that dials an address: its device, or gRPC's word for the failure."""
    command = machine.command(sys.executable, "-c", _ASK, address, str(seconds))
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_who_is_answered(tmp_path: Path, machines: Network) -> None:
    """By a server of an open network everyone is: test_start_under_attack.py."""
    alpha, beta, stranger = (machines[name] for name in ("alpha", "beta", "stranger"))
    hosts = Host("alpha", alpha.ipv4, ssh="alpha"), Host("beta", beta.ipv4, ssh="beta")
    with serving(alpha, topology_of("closed", *hosts), tmp_path) as said:
        assert said == {"serving": True}
        address = f"{alpha.ipv4}:{PORT}"
        assert ask(alpha, address) == ask(beta, address) == "device:CPU:0"
        assert ask(stranger, address, 2) == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("second", ["", "10.77.0.101"])
def test_a_host_alone_is_closed_to_all_others(tmp_path: Path, machines: Network, second: str) -> None:
    """Also if the spec names its second address: its own connections to that come from the first."""
    alpha, beta = machines["alpha"], machines["beta"]
    if second:
        alpha.ip("address", "add", f"{second}/24", "dev", "eth0")
    named = second or f"[{alpha.ipv6}]"
    with serving(alpha, topology_of("closed", Host("alpha", named.strip("[]"), ssh="alpha")), tmp_path) as said:
        assert said == {"serving": True}
        address = f"{named}:{PORT}"
        assert ask(alpha, address) == "device:CPU:0"
        assert ask(beta, address, 2) == "DEADLINE_EXCEEDED"


@pytest.mark.slow
def test_an_unknown_host_is_named(tmp_path: Path, machines: Network) -> None:
    alpha = machines["alpha"]
    hosts = Host("alpha", alpha.ipv4, ssh="alpha"), Host("beta", "beta.invalid", ssh="beta")
    with serving(alpha, topology_of("closed", *hosts), tmp_path) as said:
        assert said["error"].startswith("host beta: its address 'beta.invalid' cannot be resolved")


# The kernel's refusal is simulated; the server, its process and its port are real.
_REFUSE = """
from tfcluster.processes.servers import port_isolation
def refuse(listener, cluster):
    raise port_isolation.PortIsolationError("the kernel refused to bind the port to loopback: not permitted")
port_isolation.restrict = refuse
"""


def test_a_server_that_cannot_be_closed_is_not_started(tmp_path: Path, machines: Network) -> None:
    alpha = machines["alpha"]
    topology = topology_of("closed", Host("alpha", alpha.ipv4, ssh="alpha"))
    with serving(alpha, topology, tmp_path, before=_REFUSE) as said:
        assert "the kernel refused to bind the port to loopback: not permitted" in said["error"]
        assert "`network: private` in the spec" in said["error"]
        assert ask(alpha, f"{alpha.ipv4}:{PORT}", 1) == "DEADLINE_EXCEEDED"
