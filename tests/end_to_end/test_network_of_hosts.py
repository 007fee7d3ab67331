"""A real server of a cluster on two machines: it answers both of them, and no other machine on their network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.namespaces import Machine, Network, network
from tfcluster.core.hosts import Host
from tfcluster.core.topology import ClusterTopology, RestartPolicy, Task
from tfcluster.protocol.serialization import to_json

PORT = 4000

_SERVE = """
import json, socket, sys
from pathlib import Path
from tfcluster.tf_install import find_tensorflow_library
from tfcluster.core.topology import ClusterTopology
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.protocol.serialization import decode
from tfcluster.processes.servers.tf_server import serve
topology = decode(ClusterTopology, json.loads(sys.argv[1]))
agent = socket.socket(fileno=int(sys.argv[3]))
serve(TensorFlow(find_tensorflow_library()), topology, topology.tasks[0], Path(sys.argv[2]), agent)
"""

_ASK = """
import sys
import grpc
channel = grpc.insecure_channel(sys.argv[1])
ask = channel.unary_unary("/tensorflow.WorkerService/GetStatus")
try:
    answer = ask(b"", timeout=float(sys.argv[2]), wait_for_ready=True)
    print("device:CPU:0" if b"device:CPU:0" in answer else answer)
except grpc.RpcError as error:
    print(error.code().name)
"""


@pytest.fixture
def machines(needs_network: None) -> Iterator[Network]:
    with network("alpha", "beta", "stranger") as made:
        yield made


def topology_of(network_word: str, *hosts: Host) -> ClusterTopology:
    """A cluster with one task, on the first host."""
    restart = RestartPolicy("never", 0.1, 1.0, 5, 60.0)
    task = Task("worker", 0, hosts[0].name, hosts[0].address, PORT, 1, 0, {}, restart)
    return ClusterTopology("far", "far.yaml", network_word, (task,), hosts=hosts)


@contextmanager
def serving(machine: Machine, topology: ClusterTopology, folder: Path) -> Iterator[dict[str, object]]:
    """What a server's process on a machine says once it serves, or does not; it lives while the block runs."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            machine.command(
                *(
                    sys.executable,
                    "-c",
                    _SERVE,
                    json.dumps(to_json(topology)),
                    str(folder / "log"),
                    str(theirs.fileno()),
                )
            ),
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        try:
            yield json.loads(ours.makefile().readline())
        finally:
            process.kill()
            process.wait()


def ask(machine: Machine, address: str, seconds: float = 30) -> str:
    """What the server answers to a machine that dials an address: its device, or gRPC's word for the failure."""
    command = machine.command(sys.executable, "-c", _ASK, address, str(seconds))
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("network_word", "to_stranger"),
    [("closed", "DEADLINE_EXCEEDED"), pytest.param("open", "device:CPU:0", marks=pytest.mark.slow)],
)
def test_who_is_answered(tmp_path: Path, machines: Network, network_word: str, to_stranger: str) -> None:
    alpha, beta, stranger = (machines[name] for name in ("alpha", "beta", "stranger"))
    hosts = Host("alpha", alpha.ipv4, ssh="alpha"), Host("beta", beta.ipv4, ssh="beta")
    with serving(alpha, topology_of(network_word, *hosts), tmp_path) as said:
        assert said == {"serving": True}
        address = f"{alpha.ipv4}:{PORT}"
        assert ask(alpha, address) == ask(beta, address) == "device:CPU:0"
        assert ask(stranger, address, 30 if network_word == "open" else 2) == to_stranger


def test_a_host_alone_is_closed_to_all_others(tmp_path: Path, machines: Network) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    with serving(alpha, topology_of("closed", Host("alpha", alpha.ipv6, ssh="alpha")), tmp_path) as said:
        assert said == {"serving": True}
        address = f"[{alpha.ipv6}]:{PORT}"
        assert ask(alpha, address) == "device:CPU:0"
        assert ask(beta, address, 2) == "DEADLINE_EXCEEDED"


@pytest.mark.slow
def test_an_unknown_host_is_named(tmp_path: Path, machines: Network) -> None:
    alpha = machines["alpha"]
    hosts = Host("alpha", alpha.ipv4, ssh="alpha"), Host("beta", "beta.invalid", ssh="beta")
    with serving(alpha, topology_of("closed", *hosts), tmp_path) as said:
        assert str(said["error"]).startswith("host beta: its address 'beta.invalid' cannot be resolved")
