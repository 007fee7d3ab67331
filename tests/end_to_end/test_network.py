"""A closed cluster answers nobody but this machine; an open one does. Tried from a host of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, Sandbox
from tfcluster.installed import find_library
from tfcluster.model.layout import Layout, RestartPolicy, Task
from tfcluster.runtime import server
from tfcluster.runtime.c_api import TensorFlow
from tfcluster.runtime.closed import NotClosedError

pytestmark = pytest.mark.usefixtures("cold")

_DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 30).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""

_EARLY = """
import socket, sys
from tfcluster.installed import find_library
from tfcluster.runtime import protos
from tfcluster.runtime.c_api import TensorFlow
from tfcluster.runtime.closed import close_to_other_machines
port = int(sys.argv[1])
server = TensorFlow(find_library()).new_server(protos.server_def({"worker": [f"localhost:{port}"]}, "worker", 0, 1))
early = socket.create_connection(("127.0.0.1", port), 30)
close_to_other_machines(port)
server.start()
while early.recv(4096):
    pass
print("cut off")
"""


@dataclass
class OtherHost:
    """Another machine: a network namespace on the far end of a veth pair."""

    name: str
    our_address: str

    def dial(self, port: int) -> str:
        """What a connection from there to a port here comes to."""
        result = subprocess.run(
            ["ip", "netns", "exec", self.name, "python3", "-c", _DIAL, self.our_address, str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return result.stdout.strip()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def other_host() -> Iterator[OtherHost]:
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("a network namespace takes root; CI has it")
    mark = uuid.uuid4().hex[:8]
    name, here, there = f"tfc{mark}", f"h{mark}", f"t{mark}"
    ip("netns", "add", name)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        try:
            ip("address", "add", "198.18.77.1/30", "dev", here)
            ip("link", "set", here, "up")
            ip("-n", name, "address", "add", "198.18.77.2/30", "dev", there)
            ip("-n", name, "link", "set", there, "up")
            yield OtherHost(name, "198.18.77.1")
        finally:
            ip("link", "delete", here)  # with its namespace it would go at some later time, and its address too
    finally:
        ip("netns", "delete", name)


@pytest.mark.parametrize(
    ("network", "from_there", "own_address"),
    [("closed", "ConnectionRefusedError", False), ("open", "connected", True)],
)
def test_who_can_connect(
    sandbox: Sandbox, other_host: OtherHost, network: str, from_there: str, own_address: bool
) -> None:
    sandbox("up", sandbox.spec(f"name: net\nnetwork: {network}\njobs:\n  ps: {{tasks: 1}}\n  worker: {{tasks: 1}}\n"))
    for task in sandbox.status()["tasks"]:
        port = int(task["address"].rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), 5).close()
        assert other_host.dial(port) == from_there
        assert connects(other_host.our_address, port) is own_address
    sandbox("run", "pi", "--samples", "1000")


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_who_connects_before_the_port_is_closed_is_not_served() -> None:
    """Newer gRPC accepts connections once it listens, older once the server is started."""
    command = [sys.executable, "-c", _EARLY, str(free_port())]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "cut off\n", result.stderr


def test_the_agent_listens_on_no_port(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: ports\njobs:\n  worker: {tasks: 1}\n"))
    servers = {task["pid"] for task in sandbox.status()["tasks"]}
    assert servers
    for pid in set(sandbox.processes()) - servers:
        assert not listening_ports(pid)
    assert all(len(listening_ports(pid)) == 1 for pid in servers)


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def test_a_server_that_cannot_be_closed_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal is played; the server, its process and its port are real."""

    def refuse(port: int, cluster: object) -> None:
        raise NotClosedError(f"the kernel refused to bind port {port} to loopback: Operation not permitted")

    port = free_port()
    task = Task("worker", 0, "localhost", "localhost", port, 1, 0, {}, RestartPolicy("never", 0.1, 1.0, 5, 60.0))
    layout = Layout("shut", "shut.yaml", "closed", (task,))
    tensorflow = TensorFlow(find_library())
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(server, "close_port", refuse)
        try:
            server.serve(tensorflow, layout, task, tmp_path / "log", theirs)
        finally:
            os._exit(1)
    theirs.close()
    with ours:
        ours.sendall(b"\n")
        told = ours.makefile().readline()
    assert "Operation not permitted" in told
    assert "`network: open` in the spec" in told
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not connects("127.0.0.1", port)
