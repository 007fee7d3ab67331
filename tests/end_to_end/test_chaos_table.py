"""One table of what strikes whom: each process of a cluster is killed, stopped or told to exit while a script runs.

Whatever it is, the cluster is whole again by itself or by the command that a message names, the servers that were not
struck are the same processes, and the script ends as the table says. test_chaos.py strikes at random.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import HANG, HANGING_AGENT, Sandbox, make_sandbox, mostly_slow, wait_for
from tfcluster.os.process_handle import ProcessHandle, is_frozen

SPEC = "name: struck\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
#: Of the agent.
QUICK = {"HEALTH_INTERVAL_SECONDS": 0.5, "HEALTH_RETRY_SECONDS": 0.5, "PROBE_TIMEOUT_SECONDS": 1.0}
#: Of a command whose agent does not answer.
IMPATIENT = {"RPC_TIMEOUT_SECONDS": 2.0, "RPC_SLOW_TIMEOUT_SECONDS": 2.0, "AGENT_CONNECT_SECONDS": 1.0}
# Says who it and its driver are, and ends when told.
SCRIPT = """
import os, sys, time
print(os.getpid(), os.getppid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("the end")
"""
KILL, STOP, EXIT, HANGS = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, HANG


@dataclass(frozen=True)
class Row:
    """What strikes whom, and what comes of it."""

    who: str
    how: int
    event: str = ""  # a pattern that the event log has then
    said: str = ""  # a pattern of what `status` says as long as the process is as it is; then a person continues it
    run: str = "the end"  # what the run says in the end

    def __str__(self) -> str:
        return f"{self.who} {'hangs' if self.how == HANG else signal.Signals(self.how).name}"


#: `{pid}` is that of the process.
ROWS = [
    Row("agent", KILL, "agent-started: .*the previous agent died"),
    Row("agent", EXIT, "agent-stopped: pid {pid}, by SIGTERM; the tasks continue"),
    Row("agent", STOP, said=r"the agent \(pid {pid}\) has not answered within 2 s.*`kill -CONT {pid}`"),
    Row("agent", HANGS, "agent-started", said=r"the agent \(pid {pid}\) has not answered within 2 s.*`kill -9 {pid}`"),
    Row("server", KILL, "worker:1 died: SIGKILL; "),
    Row("server", EXIT, "worker:1 died: SIGTERM; "),
    Row("server", STOP, "worker:1 health-check-killed: it does not answer"),
    Row("driver", KILL, run=r"the driver of \S+ died \(SIGKILL\)"),
    Row("driver", STOP, "driver-continued: the driver of .*, pid {pid}, was stopped by a signal and was continued"),
    Row("script", KILL, run="script.py was terminated by SIGKILL"),
    Row("log writer", KILL),
    Row("log writer", STOP, "log-writer-restarted: the log writer, pid {pid}, was stopped by a signal"),
    Row("health prober", KILL),
    Row("health prober", STOP, "prober-restarted: the health prober, pid {pid}, was stopped by a signal"),
    Row("fork server", KILL),
    Row("fork server", STOP, "fork-server-killed: the fork server, pid {pid}, was stopped by a signal"),
]
FAST = [
    row for row in ROWS if str(row) in {"agent SIGKILL", "server SIGSTOP", "driver SIGSTOP", "health prober SIGSTOP"}
]


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A cluster that looks often at its processes; tests leave it whole, with an agent that can hang."""
    with make_sandbox(tmp_path_factory.mktemp("struck")) as sandbox, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_SETTINGS", json.dumps(QUICK))
        patch.setenv("TEST_CHANGES", json.dumps(dict([HANGING_AGENT])))
        sandbox("up", sandbox.spec(SPEC, warm=True))
        sandbox.spec(SCRIPT, "script.py")
        yield sandbox


def start_script(sandbox: Sandbox) -> tuple[str, int, int]:
    """Return the id of a run, and the pids of its script and driver."""
    (sandbox.folder / "end").unlink(missing_ok=True)
    run = sandbox("run", "--detach", "script.py", "end").stdout.strip()
    (folder,) = sandbox.folder.glob(f"state/tfcluster/*/localhost/runs/{run}")
    log = folder / "output.log"
    script, driver = wait_for(lambda: log.exists() and log.read_text().endswith("\n") and log.read_text()).split()
    return run, int(script), int(driver)


def find(sandbox: Sandbox, row: Row, script: int, driver: int) -> int:
    """Return the pid of the process that is struck."""
    known = {"script": script, "driver": driver}
    if row.who in known:
        return known[row.who]
    if row.who == "agent":
        return sandbox.agent()
    if row.who == "server":
        return int(sandbox.task("worker:1")["pid"])
    return int(min(wait_for(lambda: sandbox.pids(f" {row.who}"))))


@pytest.mark.parametrize("row", mostly_slow(ROWS, fast=FAST), ids=str)
def test_whoever_is_struck(struck: Sandbox, row: Row) -> None:
    before, told = struck.tasks("pid"), len(events_of(struck))
    run, script, driver = start_script(struck)
    pid = find(struck, row, script, driver)
    handle = ProcessHandle.from_pid(pid)
    assert handle is not None
    os.kill(pid, row.how)
    if row.said:
        wait_until_named(struck, row, pid)
    lives_on = row.how == STOP and row.who in ("agent", "driver")
    wait_for(lambda: not (is_frozen(pid) if lives_on else handle.is_alive()))
    if row.event:
        wait_for(lambda: re.search(row.event.format(pid=pid), "\n".join(events_of(struck)[told:])))
    after = {task["name"]: task["pid"] for task in struck.wait_until("running")["tasks"]}
    assert {name for name in before if before[name] != after[name]} == ({"worker:1"} if row.who == "server" else set())
    (struck.folder / "end").touch()
    attached = struck("attach", run, code=None)
    assert re.search(row.run, attached.stdout + attached.stderr), attached
    assert "pi = 3.1" in struck("run", "pi", "--samples", "1e5").stdout
    if row.who in ("log writer", "health prober", "fork server"):
        wait_for(lambda: {*struck.pids(f" {row.who}")} - {pid})


def events_of(sandbox: Sandbox) -> list[str]:
    return [f"{each['task']} {each['event']}: {each['detail']}" for each in sandbox.json_lines("events")]


def wait_until_named(sandbox: Sandbox, row: Row, pid: int) -> None:
    """Check that a command names the agent and what helps, and do that."""
    error = sandbox("status", code=5, env=sandbox.with_settings({**QUICK, **IMPATIENT})).stderr
    assert re.search(row.said.format(pid=pid), error, re.DOTALL), error
    os.kill(pid, signal.SIGCONT if row.how == STOP else signal.SIGKILL)
