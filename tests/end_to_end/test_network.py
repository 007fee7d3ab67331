"""A closed cluster answers only this machine: tried from another host, and where the kernel lets no port be closed."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.conftest import Sandbox
from tests.other_host import another_host


@pytest.mark.needs("network")
def test_only_this_machine_can_connect_to_a_cluster(demo: Sandbox) -> None:
    with another_host() as other:
        for address in demo.tasks("address").values():
            port = int(address.rpartition(":")[2])
            socket.create_connection(("127.0.0.1", port), 5).close()
            assert other.dial(port) == "ConnectionRefusedError"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other.our_address, port), 5)
    demo("run", "pi", "--samples", "1000")


def test_the_agent_listens_on_no_port(demo: Sandbox) -> None:
    servers = {*demo.tasks("pid").values()}
    listening = Counter(each.pid for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    processes = demo.processes()
    assert servers
    assert {pid: listening[pid] for pid in processes} == {pid: int(pid in servers) for pid in processes}


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
    closed = sandbox.spec(f"name: shut\n{jobs}")
    forbidden = Sandbox(sandbox.folder, sandbox.mark, command=(sys.executable, "-c", _FORBIDDEN))
    for command in (["up"], ["doctor"]):
        result = forbidden(*command, closed, code=1)
        said = result.stdout + result.stderr
        assert "ports cannot be closed before they listen: the kernel refused a seccomp filter" in said
        assert "`network: private` in the spec" in said
    assert not sandbox.pids("worker")
    forbidden("up", sandbox.spec(f"name: shut\nnetwork: open\n{jobs}"))
    assert sandbox.task("worker:0")["state"] == "ready"


def refusing(sandbox: Sandbox, refusal: str) -> Sandbox:
    """The sandbox of a machine whose kernel refuses something, see `tests.forbidden`."""
    return replace(sandbox, command=(sys.executable, "-m", "tests.forbidden", refusal, *sandbox.command))


_LISTENS = """
import socket
try:
    socket.create_server(("", 0))
    print("listens")
except OSError as error:
    raise SystemExit(f"refused: {error.strerror}")
"""


@pytest.mark.slow
def test_members_of_a_launch_can_listen_where_their_network_is_not_closed(sandbox: Sandbox) -> None:
    refused = refusing(sandbox, "pidfd_getfd")
    sandbox.spec(_LISTENS, "listens.py")
    closed = refused("launch", "--workers", "1", "listens.py", code=1).stderr
    assert closed.startswith("warning: this machine: scripts and members of `launch` cannot listen: ")
    assert "worker:0 | refused: Permission denied" in closed
    for network in ("open", "private"):
        opened = refused("launch", "--workers", "1", "--network", network, "listens.py")
        assert (opened.stdout, opened.stderr) == ("worker:0 | listens\n", "")
    error = sandbox("launch", "--network", "open", "--spec", "x.yaml", "listens.py", code=2).stderr
    assert "--network is for --workers" in error


def test_a_kernel_without_pidfds_is_named_first(sandbox: Sandbox) -> None:
    refused = refusing(sandbox, "no_pidfd_open")
    spec = sandbox.spec("name: old\njobs:\n  worker: {tasks: 1}\n")
    assert refused("doctor", spec, code=1).stdout.startswith("localhost  kernel    problem  Linux 5.4 is required: ")
    commands: list[list[str | Path]] = [["up", "--dry-run", spec], ["up", spec], ["launch", "--workers", "1", spec]]
    for arguments in commands:
        error = refused(*arguments, code=1).stderr
        assert error.startswith("error: Linux 5.4 is required: localhost (Linux "), arguments
    assert sandbox.leftovers() == []
