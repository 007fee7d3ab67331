"""Agents that die, also during a change: the next one adopts the cluster's processes, and continues."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, Sandbox, running, wait_for
from tfcluster.os.unix_socket import NameLock

SPEC = "name: heir\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def journal_of(sandbox: Sandbox) -> Path:
    return next(sandbox.folder.glob("state/tfcluster/*/*/journal.json"))


@pytest.mark.slow
def test_the_status_has_the_runs_that_ended_before_the_agent_died(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    script = sandbox.spec("print('done')\n", "script.py")
    sandbox("up", spec)
    for _ in range(2):
        sandbox("run", script)
    sandbox("run", "pi", "--samples", "-1", code=2)
    before = sandbox.status()["runs"]
    assert [run["state"] for run in before] == ["succeeded", "succeeded"]
    sandbox.kill_agent()
    assert sandbox.wait_until("running")["runs"] == before
    assert all(run["run"] in sandbox("status").stdout for run in before)
    sandbox("run", script)
    assert [run["run"] for run in sandbox.status()["runs"]][:2] == [run["run"] for run in before]
    assert len(sandbox.status()["runs"]) == len(sandbox.json("runs")) == 3

    sandbox("down")
    sandbox("up", spec)
    sandbox.kill_agent()
    assert sandbox.wait_until("running")["runs"] == [], "those are runs of an earlier cluster"
    assert len(sandbox.json("runs")) == 3


@pytest.mark.slow
def test_another_process_with_the_pid_of_a_task_is_neither_adopted_nor_killed(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: heir\njobs:\n  worker: {tasks: 2}\nrestart: {policy: never}\n"))
    sandbox.kill_agent()
    record: dict[str, Any] = json.loads(journal_of(sandbox).read_text())
    processes = [record["tasks"][f"/job:worker/task:{index}"]["process"] for index in range(2)]
    with running("sleep", "600", env={}) as stranger:
        os.kill(processes[0]["pid"], signal.SIGKILL)
        processes[0]["pid"] = stranger.pid  # that started at another time
        processes[1]["start_time"] += 1  # its own pid, as if somebody else had it now
        journal_of(sandbox).write_text(json.dumps(record))
        status = wait_for(lambda: failed if (failed := sandbox.status(code=4))["state"] == "failed" else None)
        assert [task["pid"] for task in status["tasks"]] == [None, None]
        assert {task["last_exit"]["reason"] for task in status["tasks"]} == {"exit status unknown"}
        sandbox("down")
        assert stranger.poll() is None
        assert not sandbox.processes(), "`down` ends the server too, whose mark shows that it is the cluster's"
    wait_for(lambda: not sandbox.leftovers())


#: Faults of an agent that is to ask for the driver of a run, which is recorded by then: it dies, or does not ask.
DIES, WAITS = (
    ("tfcluster.agent.runs.manager", f"RunManager._request_driver = lambda self, run: {what}")
    for what in ("os.kill(os.getpid(), 9)", "None")
)


#: Says what only the command has: the environment and standard input.
TELLS = "import os, sys\nprint(os.environ['TOLD'], os.environ.get('TFCLUSTER_TASK'), sys.stdin.read())\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "tells.py"), "secret None typed\n"),
        pytest.param(("launch", "tells.py"), "worker:0 | secret worker:0 \n", marks=pytest.mark.slow),
        pytest.param(("run", "-"), "piped\n", marks=pytest.mark.slow),
        pytest.param(("run", "--detach", "tells.py"), "tells-", marks=pytest.mark.slow),
    ],
    ids=["script", "launch", "upload", "detached"],
)
def test_a_run_that_had_not_started_is_started_by_the_next_agent(
    sandbox: Sandbox, words: tuple[str, ...], said: str
) -> None:
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault(*DIES))
    before = sandbox.agent()
    sandbox.spec(TELLS, "tells.py")
    typed = "print('piped')" if words[-1] == "-" else "typed"
    result = sandbox.execute(*COMMAND, *words, input=typed, env={"TOLD": "secret"})
    assert (result.returncode, said in result.stdout) == (0, True), result
    assert sandbox.agent() != before
    (run,) = [each["run"] for each in sandbox.json("runs")]
    assert sandbox.json_lines("attach", run)[-1]["state"] == "succeeded"
    files = sandbox.folder.glob("state/tfcluster/*/*/runs/*/*.json")
    assert "secret" not in "".join(path.read_text() for path in files)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pi", "script"])
def test_a_detached_run_that_had_not_started(sandbox: Sandbox, program: str) -> None:
    """The next agent starts a program by its record; a script's environment is in no record."""
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault(*WAITS))
    words = ("pi", "--samples", "1e5") if program == "pi" else (sandbox.spec("print(1)", "script.py"),)
    run = sandbox("run", "--detach", *words).stdout.strip()
    sandbox.kill_agent()
    code = 0 if program == "pi" else 1
    told = sandbox("attach", run, code=code, env=sandbox.with_settings({"RUN_OWNER_RECONNECT_SECONDS": 0.5}))
    if program == "pi":
        assert "samples" in told.stdout, told
        return
    assert f"the agent of {run} died before it had started" in told.stderr
    assert f"`tfcluster rerun {run}`" in told.stderr


@pytest.mark.slow
@pytest.mark.parametrize("answers", [True, False])
def test_a_run_that_had_not_started_waits_for_tasks_that_are_starting(sandbox: Sandbox, answers: bool) -> None:
    """It waits for a while: a task that never answers does not keep it."""
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault(*WAITS))
    run = sandbox("run", "--detach", "pi", "--samples", "1e5").stdout.strip()
    worker = sandbox.task("worker:0")["pid"]
    os.kill(worker, signal.SIGSTOP)
    sandbox.kill_agent()
    bounds = {"FAILED_PROBES_MAX_STARTING": 10**6} | ({} if answers else {"READY_TIMEOUT_SECONDS": 1.0})
    wait_for(lambda: "starting" in sandbox("status", code=None, env=sandbox.with_settings(bounds)).stdout)
    if answers:
        assert sandbox.json("runs")[0]["state"] == "queued"
        os.kill(worker, signal.SIGCONT)
    assert sandbox.json_lines("attach", run)[-1]["state"] == "succeeded"
    assert answers or sandbox.task("worker:0", code=None)["state"] == "starting", "the others did its part"


QUIET = """
import os, time
print("begins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
time.sleep(5)  # longer than a command waits for an agent
print("ends")
"""


@pytest.mark.slow
def test_a_quiet_run_is_followed_after_its_agent_died(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    before = sandbox.agent()
    patience = sandbox.with_settings({"RPC_TIMEOUT_SECONDS": 4.0})
    run = sandbox.start("run", sandbox.spec(QUIET, "quiet.py"), env=patience)
    assert run.stdout.readline() == "begins\n"
    sandbox.kill_agent()
    wait_for(lambda: sandbox.agent() != before)
    sandbox.spec("", "go")
    assert run.communicate(timeout=60)[0] == "ends\n"
    assert run.returncode == 0


@pytest.mark.slow
def test_an_adopted_server_that_dies_is_started_again_at_its_port(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox.kill_agent()
    before = sandbox.task("worker:1")
    # The lock of a port is the same for all clusters of a user, whatever their state homes are.
    assert NameLock.acquire(f"tfcluster-port-{os.getuid()}-{before['address'].rpartition(':')[2]}") is None
    os.kill(before["pid"], signal.SIGKILL)
    after = wait_for(lambda: next((task for task in sandbox.wait_until("running")["tasks"] if task["restarts"]), None))
    assert after["task"] == before["task"]
    assert after["address"] == before["address"]
    assert after["last_exit"]["reason"] in ("SIGKILL", "exit status unknown")  # the latter before Linux 6.15
    # And what it ended of is known to the next agent too.
    sandbox.kill_agent()
    sandbox.wait_until("running")
    assert sandbox.task("worker:1")["last_exit"] == after["last_exit"]
    assert sandbox.task("worker:1")["pid"] == after["pid"]


@pytest.mark.slow
def test_a_command_does_not_hang_when_the_agent_dies_during_adoption(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    (first,) = wait_for(lambda: sandbox.pids(" log writer"))
    stopped = sandbox.task("worker:0")["pid"]
    os.kill(stopped, signal.SIGSTOP)  # the next agent waits for its answer before it says that it listens
    sandbox.kill_agent()
    status = sandbox.start("status")
    (keeper,) = wait_for(lambda: {*sandbox.pids(" log writer")} - {first})
    os.kill(int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    _, error = status.communicate(timeout=90)
    assert "has not said that it listens" not in error, "the keeper lives on and must not keep the line open"
    os.kill(stopped, signal.SIGCONT)
    sandbox.wait_until("running")


@pytest.mark.slow
def test_events_include_their_cause(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: told\njobs:\n  worker: {tasks: 1}\n"))
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["restarts"])
    sandbox.kill_agent()
    sandbox.wait_until("running")
    sandbox("down")
    events = sandbox.json_lines("events", "-c", "told")
    assert [(event["task"], event["event"]) for event in events] == [
        (None, "up"),
        ("worker:0", "started"),
        ("worker:0", "ready"),
        ("worker:0", "died"),
        ("worker:0", "started"),
        ("worker:0", "ready"),
        (None, "agent-started"),
        ("worker:0", "adopted"),
        ("worker:0", "ready"),  # the journal does not say whether a server that was just started answered
        ("worker:0", "stopping"),
        ("worker:0", "stopped"),
        (None, "down"),
    ]
    assert events[3]["detail"] == "SIGKILL; restarting immediately"


CUT = "name: cut\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2, env: {TOKEN: {secret: hunter2}}}\n"
CHANGED = CUT.replace("tasks: 2, ", "tasks: 3, cpus: 2, ").replace("hunter2", "hunter3")


NEVER = "restart: {policy: never}\n"


# Kills the agent after its second writing of the journal, which records that a change has begun.
_AT_SECOND_WRITING = """
import os, signal
_writings = []
def _dying(write):
    def write_and_die(journal, content):
        result = write(journal, content)
        if result is not False:  # `append` has written nothing
            _writings.append(content)
        if len(_writings) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return write_and_die
Journal.write, Journal.append = _dying(Journal.write), _dying(Journal.append)
"""


# Kills the agent when it has released one of the processes that it has forked.
_AT_RELEASE = """
import os, signal
_send, _sent = ChildProcess.send, []
def _kill(child, message):
    if message == {}:
        if len(_sent) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        _sent.append(child)
    _send(child, message)
ChildProcess.send = _kill
"""


def ready(sandbox: Sandbox, tasks: int) -> Any:
    """Return the status when this number of tasks is ready, and check that each task has exactly one process."""
    status = wait_for(lambda: found if len((found := sandbox.wait_until("running"))["tasks"]) == tasks else None)
    pids = {task["pid"] for task in status["tasks"]}
    wait_for(lambda: {*sandbox.pids("tfcluster: cut ps:"), *sandbox.pids("tfcluster: cut worker:")} == pids)
    return status


@pytest.mark.slow
def test_killed_before_it_has_released_all_tasks(sandbox: Sandbox) -> None:
    dying = sandbox.with_fault("tfcluster.agent.subprocesses", _AT_RELEASE)
    error = sandbox("up", sandbox.spec(CUT + NEVER), env=dying, code=1).stderr
    assert "hint: Type the command again" in error
    status = ready(sandbox, 3)
    assert {task["restarts"] for task in status["tasks"]} == {0}
    assert {task["last_exit"] for task in status["tasks"]} == {None}


@pytest.mark.slow
def test_killed_before_it_has_a_cluster(sandbox: Sandbox) -> None:
    """What the error advises helps: `status` would say that the cluster is not running."""
    die = (
        "import os, signal\n\nasync def _die(handlers, request):\n    os.kill(os.getpid(), signal.SIGKILL)\n    yield\n"
    )
    dying = sandbox.with_fault("tfcluster.agent.handlers.cluster", f"{die}ClusterHandlers.prepare = _die\n")
    error = sandbox("up", sandbox.spec(CUT), env=dying, code=1).stderr
    assert "the agent disconnected before it replied\nhint: Type the command again: " in error
    assert "status" not in error
    wait_for(lambda: not sandbox.processes())
    sandbox("up")
    ready(sandbox, 3)


@pytest.mark.slow
def test_killed_when_a_change_is_recorded(sandbox: Sandbox) -> None:
    """The next agent, which `status` starts, completes it."""
    sandbox("up", sandbox.spec(CUT))
    before = set(sandbox.tasks("pid").values())
    sandbox.kill_agent()  # the next one is that of the command that changes it
    dying = sandbox.with_fault("tfcluster.agent.state.journal", _AT_SECOND_WRITING)
    sandbox("up", sandbox.spec(CHANGED), "--yes", env=dying, code=1)
    status = ready(sandbox, 4)
    assert len([task for task in status["tasks"] if len(task["devices"]) == 2]) == 3
    assert not {task["pid"] for task in status["tasks"]} & before
    assert "is up already" in sandbox("up").stdout, "nothing is left to do"
    [secrets] = sandbox.folder.glob("run/tfcluster/*.secrets")
    assert "hunter2" not in secrets.read_text()
