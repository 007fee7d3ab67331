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
@pytest.mark.parametrize(
    ("refusal", "words"), [("pidfd_getfd", "add `--cap-add SYS_PTRACE`"), ("no_pidfd_getfd", "Linux 5.6")]
)
def test_where_no_process_gets_the_sockets_of_another_only_programs_cannot_listen(
    sandbox: Sandbox, refusal: str, words: str
) -> None:
    """tests/processes/test_listen_guard.py is faster."""
    refused = refusing(sandbox, refusal)
    spec = sandbox.spec("name: boxed\njobs:\n  worker: {tasks: 1}\n")
    (row,) = [each for each in refused.json("doctor", spec, code=1)["checks"] if not each["ok"]]
    assert row["check"] == "programs"
    said = {"doctor": row["result"] + row["hint"], "up": refused("up", spec).stderr}
    refused("run", "pi", "--samples", "1000")
    sandbox.spec(_LISTENS, "listens.py")
    said["run"] = refused("run", "listens.py", code=1).stderr
    assert "refused: Permission denied" in said["run"]
    for command, text in said.items():
        assert words in text, command
        assert "`network: open`" in text, command
    refused("down")


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


# What conda's and uv's Pythons lack, which are built with the headers of an old kernel and C library.
_OLD_HEADERS = """
import os, signal
for module, name in ((os, "pidfd_open"), (os, "P_PIDFD"), (os, "memfd_create"), (signal, "pidfd_send_signal")):
    delattr(module, name)
"""


@pytest.mark.slow
def test_a_python_that_was_built_with_old_headers(sandbox: Sandbox) -> None:
    """tests/test_process_handle.py and tests/test_boot.py are faster."""
    env = sandbox.with_fault("tfcluster.os.libc", _OLD_HEADERS)
    sandbox("up", sandbox.spec("name: conda\njobs:\n  worker: {tasks: 2}\n"), env=env)
    assert len(sandbox.json("run", "mean", "--random", "1e5", env=env)["devices"]) == 2
    sandbox.spec(_LISTENS, "listens.py")
    for option in ("--cold", "--yes"):
        assert sandbox("run", option, "listens.py", env=env).stdout == "listens\n"
    sandbox("restart", "worker:0", "--yes", env=env)
    sandbox("down", env=env)
