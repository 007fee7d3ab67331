"""No port that a program opens can be reached from another machine, however the program opens it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, Sandbox, read_until, wait_for
from tests.other_host import OtherHost, another_host

#: The ways in which tests/scripts/listens.py listens.
KINDS = {"chief", "server", "profiler", "socket", "fork", "exec"}
PLAIN = {"socket", "fork", "exec"}


@contextmanager
def listening_script(sandbox: Sandbox, *words: str | Path) -> Iterator[dict[str, int]]:
    """A run that listens in every way; its ports by the way."""
    command = sandbox.start("run", *words, stderr=subprocess.STDOUT)
    yield json.loads(read_until(command.stdout, "PORTS")[-1].removeprefix("PORTS"))
    (sandbox.folder / "go").touch()
    assert command.wait(60) == 0
    (sandbox.folder / "go").unlink()


@pytest.mark.needs("network")
def test_only_this_machine_can_connect_to_a_script(demo: Sandbox) -> None:
    with another_host() as other:
        assert answers(demo, other, SCRIPTS / "listens.py") == dict.fromkeys(KINDS, "ConnectionRefusedError")


@pytest.mark.slow
@pytest.mark.needs("network")
def test_every_machine_can_connect_to_an_open_cluster_and_its_scripts(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: net\nnetwork: open\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 1}\n"))
    ports = [int(address.rpartition(":")[2]) for address in sandbox.tasks("address").values()]
    with another_host() as other:
        script = ("script", "--cold", SCRIPTS / "listens.py", "plain")
        assert answers(sandbox, other, *script) == dict.fromkeys(PLAIN, "connected")
        assert [other.dial(port) for port in ports] == ["connected"] * 2
    assert len(sandbox.json("devices")) == 2


def answers(sandbox: Sandbox, other: OtherHost, *words: str | Path) -> dict[str, str]:
    """How the ports of a script, which all answer on loopback, answer to another host."""
    with listening_script(sandbox, *words) as ports:
        for port in ports.values():
            socket.create_connection(("127.0.0.1", port), 5).close()
        return {kind: other.dial(port) for kind, port in ports.items()}


def test_a_bundled_program_is_trapped(demo: Sandbox) -> None:
    """The kernel says that a filter of system calls is on its process."""
    run = demo("run", "mean", "--random", "4e12", "--detach").stdout.strip()

    def is_trapped() -> bool:
        pids = demo.pids(f" {run} program")
        return bool(pids) and "Seccomp:\t2\n" in Path(f"/proc/{pids[0]}/status").read_text()

    wait_for(is_trapped)
    demo("cancel", run)


@pytest.mark.slow
def test_the_driver_is_the_parent_of_daemons_and_restricts_their_ports(demo: Sandbox) -> None:
    """Where Yama restricts ptrace, only an ancestor can duplicate a socket: the orphan of a script needs one."""
    command = demo.start("run", SCRIPTS / "leaves_daemon.py", stderr=subprocess.STDOUT)
    daemon, parent, device = json.loads(read_until(command.stdout, "DAEMON")[-1].removeprefix("DAEMON"))
    run = demo.last_run()["run"]
    assert demo.processes()[parent] == f"tfcluster: demo {run}"
    assert device == "lo"
    wait_for(lambda: not Path(f"/proc/{daemon}").exists())  # the driver reaps it while the script goes on
    assert command.poll() is None
    (demo.folder / "go").touch()
    assert command.wait(60) == 0


# As on a machine on which the driver gets no processor for a second.
_KILLS_LATE = """
inner = SupervisedProgram.kill

def kill_late(self):
    time.sleep(1)
    inner(self)

SupervisedProgram.kill = kill_late
"""


def test_a_script_that_is_cancelled_leaves_no_child_even_if_its_driver_is_late(sandbox: Sandbox) -> None:
    late = sandbox.with_fault("tfcluster.processes.runs.supervised_program", _KILLS_LATE)
    soon = sandbox.with_settings({"DRIVER_TERMINATE_SECONDS": 0.5})
    sandbox("up", sandbox.spec("jobs: {worker: {tasks: 1}}\n"), env={**late, **soon})
    sandbox.spec(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # children inherit that
        "subprocess.Popen(['sleep', '600'])\n"
        "print('on', flush=True)\n"
        "time.sleep(600)\n",
        "parent.py",
    )
    run = sandbox("run", "script", "--cold", "--detach", "parent.py").stdout.strip()
    wait_for(lambda: "on" in sandbox("logs", run).stdout)
    assert "sleep 600" in sandbox.processes().values()
    sandbox("cancel", run)
    wait_for(lambda: "sleep 600" not in sandbox.processes().values())
    assert sandbox.json("runs")[-1]["state"] == "cancelled"


@pytest.mark.slow
def test_a_driver_that_is_killed_takes_its_program_along(demo: Sandbox) -> None:
    """Else a port could be waited for, or opened, with no one to restrict it."""
    demo.spec("import time\nprint('on', flush=True)\ntime.sleep(600)\n", "sleeps.py")
    run = demo("run", "--detach", "sleeps.py").stdout.strip()

    def processes() -> dict[str, int]:
        return {title: pid for pid, title in demo.processes().items() if run in title}

    wait_for(lambda: len(processes()) == 2 and "on" in demo("logs", run).stdout)
    os.kill(processes()[f"tfcluster: demo {run}"], signal.SIGKILL)
    wait_for(lambda: not processes())
