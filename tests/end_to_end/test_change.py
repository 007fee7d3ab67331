"""up with an edited spec, and scale: only what changed gets a new process, and nothing is lost without a yes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import SCRIPTS, Sandbox, read_until, running, wait_for
from tfcluster.client.cluster import Cluster
from tfcluster.client.up import PlanConflictError, apply, plan_scale
from tfcluster.core.plan import data_losses
from tfcluster.errors import ExitCode


@contextlib.contextmanager
def counter_of(sandbox: Sandbox) -> Iterator[Callable[..., Any]]:
    """Yield what counts on the ps through a worker, and returns the new count, or the name of TensorFlow's error."""
    streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running(sys.executable, str(SCRIPTS / "count_on_ps.py"), env=sandbox.environment, **streams) as process:

        def add(index: int, *, make: bool = False) -> Any:
            address = sandbox.task(f"worker:{index}")["address"]
            process.stdin.write(json.dumps([index, address, make]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield add


def is_stopping(sandbox: Sandbox) -> bool:
    """Whether the agent has begun to stop a task."""
    (journal,) = sandbox.folder.glob("state/**/journal.json")
    return '"state": "stopping"' in journal.read_text()


@pytest.mark.slow
def test_a_cluster_changes_in_place_and_its_ps_remembers(sandbox: Sandbox) -> None:
    text = "name: grows\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2, max: 3}\n  chief: {tasks: 1, env: {A: secret}}\n"
    sandbox("up", sandbox.spec(text))
    first = sandbox.tasks("pid")
    assert list(first) == ["ps:0", "worker:0", "worker:1", "chief:0"]
    with counter_of(sandbox) as add:
        assert add(0, make=True) == 1

        sandbox.spec(text.replace("secret", "geheim"))
        changed = sandbox("up").stdout
        assert "restart    chief:0" in changed
        assert "env A changed" in changed
        assert "geheim" not in changed
        assert "grows is up: 1 task restarted in" in changed
        after = sandbox.tasks("pid")
        assert {name for name in first if first[name] != after[name]} == {"chief:0"}

        text = text.replace("secret", "geheim").replace("tasks: 2", "tasks: 3")
        sandbox.spec(text)
        (start,) = sandbox.json("up", "--dry-run")["operations"]
        assert (start["operation"], start["task"], start["lost"]) == ("start", "/job:worker/task:2", [])
        assert "grows is up: 1 task started in" in sandbox("up").stdout
        grown = sandbox.tasks("pid")
        added = grown.pop("worker:2")
        assert grown == after
        assert sandbox.task("worker:2")["address"] == start["address"]
        assert add(2) == 2, "the ps knew worker:2 from the start, and kept its memory"

        sandbox.kill_agent()
        assert "grows is up: 1 task stopped in" in sandbox("scale", "worker=2").stdout
        assert sandbox.tasks("pid") == after
        assert added not in sandbox.processes()
        with socket.socket(socket.AF_INET6) as binder, pytest.raises(OSError, match="in use"):
            binder.bind(("", int(start["address"].rpartition(":")[2])))  # it is kept for worker:2
        assert sandbox("scale", "worker=2").stdout == "grows is up already: nothing changed\n"
        sandbox("up")  # as the file says
        back = sandbox.tasks("pid")
        assert back.pop("worker:2") != added
        assert back == after
        assert add(2) == 3

        before = sandbox.tasks("pid")
        refused = sandbox("scale", "worker=4", code=2).stderr
        assert "would lose the variables of ps:0: nothing was changed" in refused
        assert "restart ps:0 on localhost" in refused
        assert "it must know the address of worker:3; LOST: the variables of ps:0" in refused
        assert "--yes" in refused
        assert "`max: N`" in refused
        assert sandbox.json("scale", "worker=4", "--dry-run")["lost"] == ["the variables of ps:0"]
        assert sandbox.tasks("pid") == before
        assert add(1) == 4
        assert "1 task started, 5 restarted" in sandbox("scale", "worker=4", "--yes").stdout
        assert not set(sandbox.tasks("pid").values()) & set(before.values())
        assert add(3) in ("FailedPreconditionError", "NotFoundError"), "the ps has started again, empty"
        assert add(3, make=True) == 1, "and knows worker:3"


@pytest.mark.slow
def test_a_change_that_needs_a_port_which_another_has_changes_nothing(sandbox: Sandbox) -> None:
    spec = "name: grows\njobs:\n  ps: {tasks: 1}\n  chief: {tasks: 1}\n"
    sandbox("up", sandbox.spec(spec))
    before = sandbox.tasks("pid")
    with socket.create_server(("127.0.0.1", 0)) as obstacle:
        port = obstacle.getsockname()[1]
        sandbox.spec(spec.replace("chief: {tasks: 1", f"chief: {{tasks: ['localhost:{port}']"))
        error = sandbox("up", "--yes", code=1).stderr
    assert f"chief:0: port {port} is taken by process {os.getpid()}" in error
    assert sandbox.tasks("pid") == before


@pytest.mark.slow
def test_runs_are_not_ended_without_a_yes(sandbox: Sandbox) -> None:
    text = "name: busy\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
    sandbox("up", sandbox.spec(text))
    run = sandbox.start("run", "-o", "json", SCRIPTS / "fails_when_told.py", stdin=subprocess.PIPE)
    name = json.loads(run.stdout.readline())["run"]
    read_until(run.stdout, '"waits"')
    refused = sandbox("scale", "worker=1", code=2).stderr
    assert f"would lose run {name}, if it uses these tasks: nothing was changed" in refused
    assert "max:" not in refused
    assert [task["state"] for task in sandbox.status()["tasks"]] == ["ready"] * 3
    sandbox("scale", "worker=1", "--yes")
    output, _ = run.communicate("\n", timeout=60)
    result = json.loads(output.splitlines()[-1])
    assert (run.returncode, result["state"]) == (1, "failed")
    assert "worker:1 is stopping" in result["error"]["message"]
    before = sandbox.tasks("pid")
    (keeper,) = wait_for(lambda: sandbox.pids(" log writer"))
    sandbox.spec(text.replace("tasks: 2}", "tasks: 1}\nrestart: {policy: always}\nlogs: {count: 2}"))
    assert sandbox("up").stdout.splitlines()[-1] == "busy is up already: no task was changed"
    assert sandbox.tasks("pid") == before
    wait_for(lambda: len(sandbox.pids(" log writer")) == 1 and keeper not in sandbox.pids(" log writer"))


@pytest.mark.slow
def test_a_plan_is_carried_out_only_on_the_cluster_that_it_was_made_from(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox("up", sandbox.spec("name: base\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2, max: 4}\n"))
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, sandbox.environment[name])
    shrink = plan_scale(Cluster("base"), {"worker": 1}, dry=False)
    assert data_losses(shrink.actions) == []
    run = sandbox.start("run", "pi", "--samples", "1e14", "-o", "json")
    name = json.loads(run.stdout.readline())["run"]
    before = sandbox.tasks("pid")
    with pytest.raises(PlanConflictError, match=f"the plan would also cancel run {name}.: nothing was done"):
        apply(shrink, accept_any_loss=False, show_status=lambda status: None)
    assert sandbox.tasks("pid") == before
    sandbox("scale", "worker=3")
    with pytest.raises(PlanConflictError, match="has changed since the plan was made") as caught:
        apply(shrink, accept_any_loss=True, show_status=lambda status: None)
    assert caught.value.exit_code is ExitCode.FAILED
    assert len(sandbox.tasks("pid")) == 4
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)

    os.kill(sandbox.task("worker:2")["pid"], signal.SIGSTOP)  # so that TERM alone does not end it
    scale = sandbox.start("scale", "worker=2")
    wait_for(lambda: is_stopping(sandbox) or scale.poll() is not None)
    sandbox("down", "--grace", "0.2")
    output, error = scale.communicate(timeout=60)
    # The agent waits 5 seconds for worker:2; a `down` that takes longer to come finds the change made.
    assert "'base' is going down" in error or "stopping worker:2" in error
    assert "Traceback" not in output + error
    assert sandbox.leftovers() == []


# Stands in for a mistake of the agent's: a topology cannot be taken over while there is a file of this name.
_MISTAKE = """
import os

apply = TaskSupervisor.apply

def fail_or_apply(self, *arguments):
    if os.path.exists({mistaken!r}):
        raise KeyError("an unexpected key")
    apply(self, *arguments)

TaskSupervisor.apply = fail_or_apply
"""


@pytest.mark.slow
def test_after_an_unexpected_error_the_cluster_can_be_changed_and_taken_down(sandbox: Sandbox) -> None:
    mistaken = sandbox.folder / "mistaken"
    fault = sandbox.with_fault("tfcluster.agent.tasks.supervisor", _MISTAKE.format(mistaken=str(mistaken)))
    spec = sandbox.spec("name: hurt\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2, max: 3}\n")
    sandbox("up", spec, env=fault)
    agent, before = sandbox.agent(), sandbox.tasks("pid")

    def fail_to_scale() -> None:
        mistaken.touch()
        error = sandbox("scale", "worker=1", code=1).stderr
        assert error.count("error: ") == 1
        assert "the agent failed: KeyError: 'an unexpected key'" in error
        assert sandbox.tasks("state", code=4) == {"ps:0": "ready", "worker:0": "ready", "worker:1": "stopped"}, (
            "so far it had come"
        )

    fail_to_scale()
    mistaken.unlink()
    assert "1 task started in" in sandbox("scale", "worker=2").stdout
    after = sandbox.tasks("pid")
    assert after.pop("worker:1") != before.pop("worker:1")
    assert after == before
    fail_to_scale()
    assert sandbox.status(code=4)["hosts"][0]["agent_pid"] == agent
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_without_warm_each_run_imports_tensorflow_and_up_changes_that_without_a_restart(sandbox: Sandbox) -> None:
    spec = "name: cold\njobs: {worker: {tasks: 1}}\n"
    script = sandbox.spec("import sys\nprint('tensorflow' in sys.modules)\n", "imported.py")
    sandbox("up", sandbox.spec(spec))
    assert not sandbox.pids("fork server"), "it starts with the first run"
    assert sandbox("run", script).stdout == "False\n"
    assert sandbox.json("run", "graph", "2 * 3")["result"]["value"] == 6
    server, cold = sandbox.tasks("pid"), sandbox.pids("fork server")
    assert "warm false -> true" in sandbox("up", sandbox.spec(spec, warm=True)).stdout
    wait_for(lambda: len(sandbox.pids("fork server")) == 1 and sandbox.pids("fork server") != cold)
    assert sandbox("run", script).stdout == "True\n"
    assert sandbox.tasks("pid") == server
