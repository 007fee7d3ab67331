"""logs: what tasks and the agent print, the last lines of it, and what comes next, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Sandbox, wait_for


def test_logs_of_all_of_one_and_of_a_job(demo: Sandbox) -> None:
    whole = demo("logs").stdout
    for task in ("ps:0    ", "worker:0", "worker:1"):
        assert any(
            line.startswith(f"{task} | ") and "Started server with target: grpc://localhost:" in line
            for line in whole.replace("ps:0 |", "ps:0     |").splitlines()
        ), task
    for name in ("worker:1", "/job:worker/task:1"):
        assert {line.partition(" ")[0] for line in demo("logs", name).stdout.splitlines()} == {"worker:1"}
    of_job = demo("logs", "worker", "-n", "1", "--grep", "Started server").stdout.splitlines()
    assert sorted(line.partition(" ")[0] for line in of_job) == ["worker:0", "worker:1"]


@pytest.mark.slow
def test_a_search_that_never_ends_holds_up_nothing_and_ends_with_its_command(demo: Sandbox) -> None:
    printer = printing(demo.task("ps:0")["pid"], 0, 1)
    assert printer.wait() == 0
    command = demo.start("logs", "ps", "-f", "--grep", r"(\.+)+!")
    wait_for(lambda: demo.pids("log search"))
    assert demo.status()["state"] == "running"
    command.kill()
    wait_for(lambda: not demo.pids("log search"))


# Prints numbered lines into the standard error of a process, as that would itself.
_PRINT = """
import os, sys
pid, first, last, length = sys.argv[1], *map(int, sys.argv[2:])
error = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND)
for start in range(first, last, 1000):
    numbers = range(start, min(start + 1000, last))
    data = b"".join(b"line %08d" % number + b"." * (length - 14) + b"\\n" for number in numbers)
    while data:
        data = data[os.write(error, data):]
"""


def printing(pid: int, first: int, last: int, length: int = 100) -> subprocess.Popen[bytes]:
    """Have a process print lines with the numbers from `first` up to `last`, each of a number of bytes."""
    return subprocess.Popen([sys.executable, "-c", _PRINT, *map(str, (pid, first, last, length))])


def numbers_in(lines: Iterator[str] | list[str]) -> list[int]:
    """The numbers of the lines that `printing` made."""
    return [int(match[1]) for match in (re.search(r"line (\d{8})", line) for line in lines) if match]


@pytest.mark.slow
def test_following_loses_and_doubles_nothing_whatever_happens(sandbox: Sandbox) -> None:
    """Rotation, a restart of the task, and the ends of the keeper and of the agent."""
    sandbox("up", sandbox.spec("name: tough\njobs:\n  worker: {tasks: 1}\nlogs: {size: 100 kB, count: 50}\n"))
    following = sandbox.start("logs", "-f", "worker:0")
    events = sandbox.start("events", "-f", "-o", "json")
    seen: list[str] = []

    def see(until: str) -> None:
        while not seen or until not in seen[-1]:
            seen.append(following.stdout.readline())
            assert seen[-1], "it goes on"

    def print_lines(first: int, last: int) -> None:
        assert printing(sandbox.task("worker:0")["pid"], first, last).wait() == 0

    print_lines(0, 5_000)
    see("line 00004999")
    os.kill(sandbox.pids("log writer")[0], signal.SIGKILL)
    print_lines(5_000, 7_000)
    see("line 00006999")
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["restarts"])
    see("Started server")
    pid, agent = sandbox.task("worker:0")["pid"], sandbox.kill_agent()
    assert printing(pid, 7_000, 12_000).wait() == 0
    see("line 00011999")
    sandbox.wait_until("running")
    assert sandbox.agent() != agent
    print_lines(12_000, 15_000)
    see("line 00014999")
    assert numbers_in(seen) == [*range(15_000)]
    assert sum("Started server" in line for line in seen) == 2
    assert numbers_in(sandbox("logs").stdout.splitlines()) == [*range(15_000)]
    assert (sandbox.folder / "state/tfcluster/tough/localhost/logs/worker:0.log.9").exists()
    wait_for(lambda: sandbox.pids("log writer"))

    sandbox("down")
    seen += following.communicate(timeout=60)[0].splitlines()
    assert following.returncode == 0
    assert numbers_in(seen) == [*range(15_000)]
    told = [json.loads(line) for line in events.communicate(timeout=60)[0].splitlines()]
    assert sandbox.json_lines("events", "-c", "tough") == told
    assert told[-1]["event"] == "down"


@pytest.mark.slow
def test_the_log_collector_exits_with_the_cluster_even_without_an_agent(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: left\njobs:\n  worker: {tasks: 1}\n"))
    keeper = wait_for(lambda: sandbox.pids("log writer"))
    pid = sandbox.task("worker:0")["pid"]
    sandbox.kill_agent()
    assert printing(pid, 0, 10).wait() == 0
    log = sandbox.folder / "state/tfcluster/left/localhost/logs/worker:0.log"
    wait_for(lambda: numbers_in(log.read_text().splitlines()) == [*range(10)])
    assert sandbox.pids("log writer") == keeper
    os.kill(pid, signal.SIGKILL)
    (sandbox.folder / "state/tfcluster/left/localhost/journal.json").unlink()
    wait_for(lambda: not sandbox.processes())
    assert not (sandbox.folder / "state/tfcluster/left/localhost/log-buffers").exists()
    assert numbers_in(sandbox("logs", "-c", "left").stdout.splitlines()) == [*range(10)]
    wait_for(lambda: not sandbox.leftovers())


SPEC = "name: logged\njobs:\n  worker: {tasks: 2}\n"


def agent_log(sandbox: Sandbox, *arguments: str) -> list[str]:
    command = sandbox.start("logs", "--agent", *arguments)  # its output may contain a traceback
    return command.communicate(timeout=90)[0].splitlines()


#: A handler that fails.
BROKEN = "def _fail(*arguments): raise KeyError('broken')\nClusterHandlers.restart = _fail\n"


@pytest.mark.slow
def test_the_agents_own_log_has_transitions_and_tracebacks_and_is_continued_by_the_next_agent(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault("tfcluster.agent.handlers.cluster", BROKEN))
    follower = sandbox.start("logs", "--agent", "-f")
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.task("worker:0", code=None)["restarts"] == 1)
    sandbox.wait_until("running")
    sandbox("restart", "worker:0", "--yes", code=1)
    agent = sandbox.status()["hosts"][0]["agent_pid"]
    os.kill(agent, signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{agent}").exists())
    lines = agent_log(sandbox)
    expected = [
        f"INFO    up: 2 tasks, agent {agent}",
        "INFO    worker:0 started: pid",
        "INFO    worker:0 died: SIGKILL; restarting immediately",
        "ERROR   a request failed",
        "Traceback (most recent call last)",
        "KeyError: 'broken'",
        f"INFO    agent-stopped: pid {agent}, by SIGTERM",
        "INFO    agent-started: pid",
        "INFO    worker:1 adopted: pid",
    ]
    positions = [next(at for at, line in enumerate(lines) if text in line) for text in expected]
    assert positions == sorted(positions)
    assert {line.partition(" | ")[0] for line in lines} == {"agent"}
    assert agent_log(sandbox, "localhost", "--tail", "1") == agent_log(sandbox)[-1:]
    sandbox("down")
    assert agent_log(sandbox, "-c", "logged")[-1].endswith("INFO    down")
    followed = follower.communicate(timeout=60)[0].splitlines()
    assert followed[-1].endswith("INFO    down")
    assert [line for line in followed if "agent-started" in line] == [line for line in lines if "agent-started" in line]
