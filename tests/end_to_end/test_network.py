"""A closed cluster answers only this machine; an open one answers all. Tried from a host of its own."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Sandbox, running
from tests.descriptors import held_by
from tests.other_host import OtherHost, another_host
from tfcluster.core.topology import ClusterTopology, RestartPolicy, Task
from tfcluster.protocol.serialization import to_json


@pytest.fixture
def other_host(needs_network: None) -> Iterator[OtherHost]:
    with another_host() as made:
        yield made


def test_only_this_machine_can_connect_to_a_cluster(demo: Sandbox, other_host: OtherHost) -> None:
    assert answers(demo, other_host) == {(True, "ConnectionRefusedError", False)}
    demo("run", "pi", "--samples", "1000")


@pytest.mark.slow
def test_every_machine_can_connect_to_an_open_cluster(sandbox: Sandbox, other_host: OtherHost) -> None:
    sandbox("up", sandbox.spec("name: net\nnetwork: open\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 1}\n"))
    assert answers(sandbox, other_host) == {(True, "connected", True)}
    sandbox("run", "pi", "--samples", "1000")


def answers(sandbox: Sandbox, other_host: OtherHost) -> set[tuple[bool, str, bool]]:
    """How the tasks answer on loopback, to another host, and on the address that the other host knows."""
    ports = [int(task["address"].rpartition(":")[2]) for task in sandbox.status()["tasks"]]
    return {
        (connects("127.0.0.1", port), other_host.dial(port), connects(other_host.our_address, port)) for port in ports
    }


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_the_agent_listens_on_no_port(demo: Sandbox) -> None:
    servers = {task["pid"] for task in demo.status()["tasks"]}
    assert servers
    for pid in set(demo.processes()) - servers:
        assert not listening_ports(pid)
    assert all(len(listening_ports(pid)) == 1 for pid in servers)


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    inodes = {held[8:-1] for held in held_by(pid) if held.startswith("socket:[")}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


# A login shell under a container's profile that forbids seccomp: all that is started from it may not trap listen().
_FORBIDDEN = """
import ctypes, os, struct, sys
from tfcluster.os import seccomp
code = b"".join(struct.pack("=HBBI", *each) for each in (
    (0x20, 0, 0, 0), (0x15, 0, 1, seccomp._architecture().seccomp), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000),
))
buffer = ctypes.create_string_buffer(code, len(code))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack("HP", 4, ctypes.addressof(buffer))) == 0
os.execv(sys.executable, [sys.executable, "-m", "tfcluster", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_where_ports_cannot_be_closed_nothing_is_started(sandbox: Sandbox) -> None:
    jobs = "jobs:\n  worker: {tasks: 1}\n"
    closed, opened = (
        sandbox.spec(f"name: shut\n{jobs}"),
        sandbox.spec(f"name: shut\nnetwork: open\n{jobs}", "open.yaml"),
    )
    forbidden = Sandbox(sandbox.folder, sandbox.mark, command=(sys.executable, "-c", _FORBIDDEN))
    for command in (["up"], ["doctor"]):
        result = forbidden(*command, closed, code=1)
        said = result.stdout + result.stderr
        assert "ports cannot be closed before they listen: the kernel refused a seccomp filter" in said
        assert "`network: private` in the spec" in said
    assert not [title for title in sandbox.processes().values() if "worker" in title]
    forbidden("up", opened)
    assert sandbox.task("worker:0")["state"] == "ready"


# Serves a task; the kernel's refusal is simulated, the server, its process and its port are real.
_SERVE_WITH_REFUSAL = """
import json, socket, sys
from pathlib import Path
from tfcluster.core.topology import ClusterTopology
from tfcluster.processes.servers import port_isolation, tf_server
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.protocol.serialization import decode
from tfcluster.tf_install import find_tensorflow_library
def refuse(listener, cluster):
    port = listener.getsockname()[1]
    raise port_isolation.PortIsolationError(f"the kernel refused to bind port {port} to loopback: not permitted")
port_isolation.restrict = refuse
topology = decode(ClusterTopology, json.loads(sys.argv[1]))
agent = socket.socket(fileno=int(sys.argv[3]))
tf_server.serve(TensorFlow(find_tensorflow_library()), topology, topology.tasks[0], Path(sys.argv[2]), agent)
"""


def test_a_server_that_cannot_be_closed_is_not_started(tmp_path: Path) -> None:
    port = free_port()
    task = Task("worker", 0, "localhost", "localhost", port, 1, 0, {}, RestartPolicy("never", 0.1, 1.0, 5, 60.0))
    topology = json.dumps(to_json(ClusterTopology("shut", "shut.yaml", "closed", (task,))))
    agent_side, server_side = socket.socketpair()
    arguments = (topology, str(tmp_path / "log"), str(server_side.fileno()))
    with (
        agent_side,
        running(sys.executable, "-c", _SERVE_WITH_REFUSAL, *arguments, pass_fds=[server_side.fileno()]) as process,
    ):
        server_side.close()
        message = agent_side.makefile().readline()
        assert process.wait(60) == 0, "it has returned without serving"
    assert f"the kernel refused to bind port {port} to loopback: not permitted" in message
    assert "`network: private` in the spec" in message
    assert not connects("127.0.0.1", port)
