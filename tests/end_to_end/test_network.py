"""A closed cluster answers only this machine: tried from another host, and where the kernel lets no port be closed."""

from __future__ import annotations

import socket
import sys
from collections import Counter

import psutil
import pytest

from tests.conftest import Sandbox
from tests.other_host import OtherHost


def test_only_this_machine_can_connect_to_a_cluster(demo: Sandbox, other_host: OtherHost) -> None:
    for address in demo.tasks("address").values():
        port = int(address.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), 5).close()
        assert other_host.dial(port) == "ConnectionRefusedError"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other_host.our_address, port), 5)
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
