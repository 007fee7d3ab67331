"""The agent killed while it starts or changes a cluster; tests/agent/test_crash_model.py has every step of it."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from tests.conftest import Sandbox, wait_for

SPEC = "name: cut\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2, env: {TOKEN: {secret: hunter2}}}\n"
CHANGED = SPEC.replace("tasks: 2, ", "tasks: 3, cpus: 2, ").replace("hunter2", "hunter3")
NEVER = "restart: {policy: never}\n"

# Kills the agent after a writing of the journal.
_AT_WRITING = """
import os, signal
_writings = []
def _dying(write):
    def write_and_die(journal, content):
        result = write(journal, content)
        if result is not False:  # `append` has written nothing
            _writings.append(content)
        if len(_writings) == {number}:
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


def at_writing(sandbox: Sandbox, number: int) -> dict[str, str]:
    return sandbox.with_fault("tfcluster.agent.state.journal", _AT_WRITING.format(number=number))


def ready(sandbox: Sandbox, tasks: int) -> Any:
    """Return the status when this number of tasks is ready, and check that each task has exactly one process."""
    status = wait_for(lambda: found if len((found := sandbox.wait_until("running"))["tasks"]) == tasks else None)
    pids = {task["pid"] for task in status["tasks"]}
    wait_for(lambda: {*sandbox.pids("tfcluster: cut ps:"), *sandbox.pids("tfcluster: cut worker:")} == pids)
    return status


@pytest.mark.slow
def test_killed_before_it_has_released_all_tasks(sandbox: Sandbox) -> None:
    dying = sandbox.with_fault("tfcluster.agent.subprocesses", _AT_RELEASE)
    error = sandbox("up", sandbox.spec(SPEC + NEVER), env=dying, code=1).stderr
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
    error = sandbox("up", sandbox.spec(SPEC), env=dying, code=1).stderr
    assert "the agent disconnected before it replied\nhint: Type the command again: " in error
    assert "status" not in error
    wait_for(lambda: not sandbox.processes())
    sandbox("up")
    ready(sandbox, 3)


@pytest.mark.slow
def test_killed_when_a_change_is_recorded(sandbox: Sandbox) -> None:
    """The next agent, which `status` starts, goes on by itself."""
    sandbox("up", sandbox.spec(SPEC))
    before = set(sandbox.tasks("pid").values())
    sandbox.kill_agent()  # the next one is that of the command that changes it
    sandbox("up", sandbox.spec(CHANGED), "--yes", env=at_writing(sandbox, 2), code=1)
    status = ready(sandbox, 4)
    assert len([task for task in status["tasks"] if len(task["devices"]) == 2]) == 3
    assert not {task["pid"] for task in status["tasks"]} & before
    assert "is up already" in sandbox("up").stdout, "nothing is left to do"
    [secrets] = sandbox.folder.glob("run/tfcluster/*.secrets")
    assert "hunter2" not in secrets.read_text()


@pytest.mark.slow
def test_a_change_that_cannot_be_completed_is_reported(sandbox: Sandbox) -> None:

    sandbox("up", sandbox.spec(SPEC))
    sandbox.kill_agent()
    with socket.socket() as stranger:
        stranger.bind(("", 0))
        port = stranger.getsockname()[1]
        stranger.close()
        spec = sandbox.spec(f"name: cut\njobs:\n  worker: [localhost, 'localhost:{port}']\n")
        sandbox("up", spec, "--yes", env=at_writing(sandbox, 3), code=1)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("", port))
        stranger.listen()
        sandbox("status", code=None)
        events = wait_for(lambda: "update-failed" in (told := sandbox("events").stdout) and told)
        assert f"port {port} is taken by process {os.getpid()}" in events
    sandbox("up", spec, "--yes")
    assert sandbox.status()["state"] == "running"
