"""One table of what strikes whom while a script runs: signals, a full disk, a port that another has, a reboot.

Whatever it is, the cluster is whole again by itself or by what a message names, the servers that were not struck are
the same processes, and the script ends as the table says. test_chaos.py strikes at random.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.conftest import HANG, HANGING_AGENT, SCRIPTS, Sandbox, wait_for
from tests.strikes import fill, reboot, taken
from tfcluster.os.process_handle import ProcessHandle, is_frozen

#: Of the agent. Each change of its journal is a snapshot: a line might fit into the last page of a full disk.
QUICK = {
    "HEALTH_INTERVAL_SECONDS": 0.5,
    "HEALTH_RETRY_SECONDS": 0.5,
    "PROBE_TIMEOUT_SECONDS": 1.0,
    "JOURNAL_CHANGES_MIN_BYTES": -1,
    "JOURNAL_CHANGES_FACTOR": -1,
}
#: Of a command whose agent does not answer.
IMPATIENT = {**QUICK, "RPC_TIMEOUT_SECONDS": 2.0, "RPC_SLOW_TIMEOUT_SECONDS": 2.0, "AGENT_CONNECT_SECONDS": 1.0}
CLUSTER = Cluster(
    "name: struck\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n",
    warm=True,
    settings=QUICK,
    changes=dict([HANGING_AGENT]),
    has_disk=True,
)
ALL = {"ps:0", "worker:0", "worker:1"}


@dataclass(frozen=True)
class Struck:
    """The process that is struck: the agent, worker:1, a helper of theirs, the script or its driver."""

    sandbox: Sandbox
    pid: int


#: What happens to a process. Within the block it is as it was struck; after it, a person has done what helps.
Strike = Callable[[Struck], contextlib.AbstractContextManager[None]]


def sends(number: int, *, then: int = 0) -> Strike:
    """Strike with a signal; a person sends another one to who does not end, and is not replaced, by it."""

    @contextlib.contextmanager
    def strike(struck: Struck) -> Iterator[None]:
        os.kill(struck.pid, number)
        try:
            yield
        finally:
            if then:
                os.kill(struck.pid, then)

    return strike


@contextlib.contextmanager
def dies_on_a_full_disk(struck: Struck) -> Iterator[None]:
    filler = fill(struck.sandbox.folder / "state")
    os.kill(struck.pid, signal.SIGKILL)
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def loses_its_port(struck: Struck) -> Iterator[None]:
    """A stranger takes the port of a server that dies without an agent, which would keep it."""
    port = struck.sandbox.task("worker:1")["address"].rpartition(":")[2]
    server = ProcessHandle.from_pid(struck.pid)
    assert server is not None
    struck.sandbox.kill_agent()
    os.kill(struck.pid, signal.SIGKILL)
    wait_for(lambda: not server.is_alive())
    with taken(int(port)):
        yield


@contextlib.contextmanager
def reboots(struck: Struck) -> Iterator[None]:
    folder = struck.sandbox.folder
    reboot(struck.sandbox, folder / "run", state_folder=folder / "state")
    yield


@dataclass(frozen=True)
class Row:
    """What strikes whom, and what comes of it."""

    who: str
    how: str
    strike: Strike
    event: str = ""  # a pattern that the event log has then
    said: str = ""  # a pattern of what `status` says until a person helps
    run: str = "the end"  # a pattern of what `attach` shows of the run
    code: int = 0  # of the run
    again: frozenset[str] = frozenset()  # the tasks whose server is another one then

    def __str__(self) -> str:
        return f"{self.who} {self.how}"


def server_row(how: str, strike: Strike, event: str, said: str = "") -> Row:
    return Row("server", how, strike, event, said, again=frozenset({"worker:1"}))


KILL, STOP, TERM, CONT = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT
SILENT = r"the agent \(pid {pid}\) has not answered within 2 s.*"
#: `{pid}` is that of the process.
FAST_ROWS = [
    Row("agent", "SIGKILL", sends(KILL), "agent-started: .*the previous agent died"),
    Row("driver", "SIGSTOP", sends(STOP), "driver-continued: the driver of .*, pid {pid}, was stopped by a signal"),
    Row("health prober", "SIGSTOP", sends(STOP), "prober-restarted: the health prober, pid {pid}, was stopped"),
]
SLOW_ROWS = [
    Row("agent", "SIGTERM", sends(TERM), "agent-stopped: pid {pid}, by SIGTERM; the tasks continue"),
    Row("agent", "SIGSTOP", sends(STOP, then=CONT), said=SILENT + "`kill -CONT {pid}`"),
    Row("agent", "hangs", sends(HANG, then=KILL), "agent-started", said=SILENT + "`kill -9 {pid}`"),
    server_row("SIGSTOP", sends(STOP), "worker:1 health-check-killed: it does not answer"),
    server_row("SIGKILL", sends(KILL), "worker:1 died: SIGKILL; "),
    server_row("SIGTERM", sends(TERM), "worker:1 died: SIGTERM; "),
    server_row("dies and loses its port", loses_its_port, "worker:1 blocked: waiting: port", "port .* is taken by pro"),
    Row("driver", "SIGKILL", sends(KILL), run=r"the driver of \S+ died \(SIGKILL\)", code=1),
    Row("script", "SIGKILL", sends(KILL), run="wait_for_file.py was terminated by SIGKILL", code=137),
    Row("script", "SIGTERM", sends(TERM), run=r"^\d+ \d+\n$", code=143),  # as of a script that ends so on purpose
    Row("log writer", "SIGKILL", sends(KILL)),
    Row("log writer", "SIGSTOP", sends(STOP), "log-writer-restarted: the log writer, pid {pid}, was stopped by a sig"),
    Row("health prober", "SIGKILL", sends(KILL)),
    Row("fork server", "SIGKILL", sends(KILL)),
    Row("fork server", "SIGSTOP", sends(STOP), "fork-server-killed: the fork server, pid {pid}, was stopped"),
    Row("agent", "reboots", reboots, "host-rebooted", run="the driver of .* died", code=1, again=frozenset(ALL)),
]
NO_ROOM = "waiting: the disk of .* is full"
ON_A_DISK = server_row("dies on a full disk", dies_on_a_full_disk, f"worker:1 blocked: {NO_ROOM}", NO_ROOM)
ROWS = [
    *FAST_ROWS,
    *(pytest.param(row, marks=pytest.mark.slow) for row in SLOW_ROWS),
    pytest.param(ON_A_DISK, marks=[pytest.mark.slow, pytest.mark.needs("root")]),
]


def start_script(sandbox: Sandbox) -> tuple[str, int, int]:
    """Return the id of a run, and the pids of its script and driver."""
    (sandbox.folder / "end").unlink(missing_ok=True)
    run = sandbox("run", "--detach", SCRIPTS / "wait_for_file.py", "end").stdout.strip()
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


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_whoever_is_struck(cluster: Sandbox, row: Row) -> None:
    before, told = tasks_in(cluster.status()), len(events_of(cluster))
    run, script, driver = start_script(cluster)
    pid = find(cluster, row, script, driver)
    handle = ProcessHandle.from_pid(pid)
    assert handle is not None
    with row.strike(Struck(cluster, pid)):
        if row.said:
            wait_for(lambda: re.search(row.said.format(pid=pid), said_by(cluster, "status"), re.DOTALL))
            if row.who == "agent":  # and no other command hangs
                assert all(
                    re.search(row.said.format(pid=pid), said_by(cluster, command, code=5), re.DOTALL)
                    for command in ("down", "doctor")
                )
    lives_on = row.how == "SIGSTOP" and row.who in ("agent", "driver")
    wait_for(lambda: not (is_frozen(pid) if lives_on else handle.is_alive()))
    if row.event:
        wait_for(lambda: re.search(row.event.format(pid=pid), "\n".join(events_of(cluster)[told:])))
    after = tasks_in(cluster.wait_until("running"))
    assert {name for name in before if before[name]["pid"] != after[name]["pid"]} == row.again
    assert [after[name]["address"] for name in before] == [task["address"] for task in before.values()]
    (cluster.folder / "end").touch()
    attached = cluster("attach", run, code=row.code)
    assert re.search(row.run, attached.stdout + attached.stderr), attached
    assert "pi = 3.1" in cluster("run", "pi", "--samples", "1e5").stdout
    if row.who in ("log writer", "health prober", "fork server"):
        wait_for(lambda: {*cluster.pids(f" {row.who}")} - {pid})


def tasks_in(status: Any) -> dict[str, Any]:
    """Return the tasks of a status by their names."""
    return {task["name"]: task for task in status["tasks"]}


def events_of(sandbox: Sandbox) -> list[str]:
    return [f"{each['task']} {each['event']}: {each['detail']}" for each in sandbox.json_lines("events")]


def said_by(sandbox: Sandbox, command: str, code: int | None = None) -> str:
    """Return all that a command says, soon if no agent answers."""
    shown = sandbox(command, code=code, env=sandbox.with_settings(IMPATIENT))
    return str(shown.stdout + shown.stderr)
