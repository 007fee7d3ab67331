"""A journal that is missing or damaged: every command names the processes that run, and `down` ends them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.test_journal import damage_by_pipe
from tests.conftest import Sandbox, mostly_slow, running, wait_for
from tests.hosts import over
from tfcluster.os.process_handle import ProcessHandle

SPEC = "name: lost\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def folder_of(sandbox: Sandbox) -> Path:
    return sandbox.folder / "state/tfcluster/lost/localhost"


def tasks_of(sandbox: Sandbox) -> set[str]:
    """Return the tasks as messages name them: `ps:0 (pid 123)`."""
    return {f"{name} (pid {pid})" for name, pid in sandbox.tasks("pid").items()}


def named_in(message: str) -> set[str]:
    return set(re.findall(r"\w+:\d \(pid \d+\)", message))


def remove_journal(sandbox: Sandbox) -> None:
    (folder_of(sandbox) / "journal.json").unlink()


def remove_state(sandbox: Sandbox) -> None:
    shutil.rmtree(sandbox.folder / "state")


def remove_all(sandbox: Sandbox) -> None:
    remove_state(sandbox)
    shutil.rmtree(sandbox.folder / "run")
    (sandbox.folder / "run").mkdir(mode=0o700)


LOSSES = [remove_journal, remove_state, remove_all]


@pytest.mark.parametrize("lose", mostly_slow(LOSSES, fast=[remove_journal]))
def test_a_lost_journal(sandbox: Sandbox, lose: Callable[[Sandbox], None]) -> None:
    sandbox.spec(SPEC)
    sandbox("up")
    tasks = tasks_of(sandbox)
    sandbox.kill_agent()
    lose(sandbox)
    wait_for(lambda: len(sandbox.processes()) == 3)  # the log writer ends without a journal
    for command, code in (("status", 3), ("up", 1)):
        error = sandbox(command, code=code).stderr
        assert re.search(r"journal.json is missing; still running: .*\bps:0 \(pid ", error)
        assert "`tfcluster down -c lost`" in error
        assert named_in(error) == tasks
    wait_for(lambda: len(sandbox.processes()) == 3)  # nothing was started, and no agent stays
    if lose is remove_all:  # nothing names the cluster but its processes
        (sandbox.folder / "cluster.yaml").unlink()
    down = sandbox("down", *(["--all"] if lose is remove_state else []))
    assert "stopped 3 processes of lost that no journal recorded: " in down.stderr
    assert named_in(down.stderr) == tasks
    assert down.stdout == "lost is down\n"
    assert sandbox.leftovers() == []
    sandbox("down", code=3)


@pytest.mark.slow
def test_the_doctor_names_what_is_left(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox.kill_agent()
    for problem in ("its agent has died", r"journal.json is missing; still running: .*\bps:0 \(pid "):
        result = sandbox("doctor", code=1)
        assert re.search(problem, result.stdout)
        assert result.stderr == ""
        shutil.rmtree(folder_of(sandbox), ignore_errors=True)
    assert "stopped 3 processes of lost" in sandbox("down").stderr


def write_other_format(sandbox: Sandbox) -> None:
    """Write the journal as another version does: its fields have other names, but not those of a process."""
    path = folder_of(sandbox) / "journal.json"
    first, _, changes = path.read_text().partition("\n")
    path.write_text(json.dumps({f"other {name}": value for name, value in json.loads(first).items()}) + "\n" + changes)


@pytest.mark.slow
def test_down_ends_what_another_version_has_started_and_marked_otherwise(sandbox: Sandbox) -> None:
    """Before, `down` removed such a journal, said that it had stopped 0 tasks, and left every server listening."""
    other = sandbox.with_fault("tfcluster.process_mark", "MARK = 'TFCLUSTER_OTHER_MARK'")
    sandbox("up", sandbox.spec(SPEC), env=other)
    tasks = tasks_of(sandbox)
    sandbox.kill_agent()
    write_other_format(sandbox)
    for command in (["status"], ["up"]):
        error = sandbox(*command, code=1).stderr
        assert "journal.json is damaged" in error
        assert named_in(error) == tasks
    down = sandbox("down")
    assert "stopped 3 processes of lost: " in down.stderr
    assert named_in(down.stderr) == tasks
    assert down.stdout == "lost is down\n"
    wait_for(lambda: not sandbox.processes())  # the log writer ends by itself


@pytest.mark.slow
def test_a_journal_stays_if_a_process_survives(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    tasks = tasks_of(sandbox)
    sandbox.kill_agent()
    write_other_format(sandbox)
    written = (folder_of(sandbox) / "journal.json").read_bytes()
    deaf = {
        **sandbox.with_fault("tfcluster.agent.handlers.cluster", "send_signal = lambda pidfd, number: None"),
        **sandbox.with_settings({"KILL_SECONDS": 0.1}),
    }
    down = sandbox("down", "--grace", "0.1", code=1, env=deaf)
    assert named_in(down.stderr) == tasks
    assert "still running 0.1 s after SIGKILL" in down.stderr
    assert down.stdout == ""
    assert (folder_of(sandbox) / "journal.json").read_bytes() == written
    # Also without a journal, what survives is an error.
    remove_journal(sandbox)
    assert "still running 0.1 s after SIGKILL" in sandbox("down", "--grace", "0.1", code=1, env=deaf).stderr
    assert "stopped 3 processes" in sandbox("down").stderr
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_down_ends_what_the_journal_does_not_record(sandbox: Sandbox) -> None:
    """Such as a first set of servers, of which an earlier version started a second one when their journal was lost."""
    sandbox("up", sandbox.spec(SPEC))
    [mark] = {
        variable
        for pid in sandbox.processes()
        for variable in Path(f"/proc/{pid}/environ").read_text().split("\0")
        if variable.startswith("TFCLUSTER_AGENT_MARK=")
    }
    name, _, value = mark.partition("=")
    with running("sleep", "600", env={name: value}) as first:
        down = sandbox("down")
        assert first.wait(30) == -signal.SIGTERM
    assert f"stopped 1 process of lost that no journal recorded: sleep (pid {first.pid})" in down.stderr
    assert down.stdout == "lost is down: 3 tasks stopped\n"


@pytest.mark.slow
def test_an_agent_that_starts_is_not_taken_for_what_is_left(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    fault = """
open_socket = _open_socket
def wait_and_open(path):
    while not os.path.exists(f"{os.environ['TEST_HOSTS']}/go"):
        time.sleep(0.05)
    return open_socket(path)
_open_socket = wait_and_open
"""
    up = sandbox.start("up", spec, env=sandbox.with_fault("tfcluster.agent.main", fault))
    wait_for(lambda: any("agent on" in title for title in sandbox.processes().values()))
    for command in ("status", "down"):
        assert "is not running" in sandbox(command, code=3).stderr
    (sandbox.folder / "go").touch()
    _, error = up.communicate(timeout=90)
    assert up.returncode == 0, error


@pytest.mark.slow
@pytest.mark.needs("network")
@pytest.mark.parametrize(("lost", "is_damaged"), [(["beta"], True), (["alpha", "beta"], False)])
def test_lost_journals_of_hosts(tmp_path: Path, lost: list[str], is_damaged: bool) -> None:
    with over(tmp_path, "alpha", "beta", has_sshd=False) as sandbox:
        spec = sandbox.spec(sandbox.text(("alpha", "beta"), "jobs: {worker: {tasks: 4}}\n"))
        sandbox("up", spec)
        tasks = {f"{task['name']} (pid {task['pid']})" for task in sandbox.status()["tasks"] if task["host"] in lost}
        for host in lost:
            lose_host(sandbox.network.home(host) / f"state/tfcluster/wide/{host}", is_damaged=is_damaged)
        status = sandbox("status", code=5 if len(lost) == 1 else 3)
        up = sandbox("up", spec, code=1)
        down = sandbox("down")
        assert [named_in(each.stderr) for each in (status, up, down)] == [tasks] * 3
        assert all(f"host '{host}': " in status.stderr for host in lost)
        problem, stopped = ("is damaged", "") if is_damaged else ("is missing", " that no journal recorded")
        assert problem in status.stderr
        # The log writer ends by itself if there is no journal.
        assert len(re.findall(f"stopped [23] processes of wide{stopped}: ", down.stderr)) == len(lost)
        wait_for(lambda: not sandbox.network.leftovers())
        sandbox("status", code=3)


def lose_host(folder: Path, *, is_damaged: bool) -> None:
    agent = ProcessHandle.from_pid(json.loads((folder / "lock").read_text())["pid"])
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    wait_for(lambda: not agent.is_alive())
    if is_damaged:
        (folder / "journal.json").write_text("{")
    else:
        shutil.rmtree(folder)


#: tests/agent/test_journal.py has all kinds.
DAMAGE: dict[str, Callable[[Path], object]] = {"cut": lambda path: os.truncate(path, 100), "pipe": damage_by_pipe}


def journal_of(sandbox: Sandbox) -> Path:
    return folder_of(sandbox) / "journal.json"


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_down_stops_what_runs(sandbox: Sandbox, damage: str) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    before = sandbox.status()["tasks"]
    sandbox.kill_agent()
    DAMAGE[damage](journal_of(sandbox))
    for command in (["status"], ["run", "pi"], ["up", spec], ["restart", "ps:0", "--yes"]):
        error = sandbox(*command, code=1).stderr
        assert f"{journal_of(sandbox)} is damaged" in error
        assert re.search("`tfcluster down( -c lost)?`", error)
    assert {line.split()[0] for line in sandbox("logs").stdout.splitlines()} == {"ps:0", "worker:0", "worker:1"}
    assert "Started server" in sandbox("logs", "ps", "--grep", "Started").stdout
    assert " up " in sandbox("events").stdout
    assert {task["pid"] for task in before} <= set(sandbox.processes())
    with running("sleep", "600", env={"TFCLUSTER_AGENT_MARK": "0" * 32, "TEST_MARK": sandbox.mark}) as stranger:
        down = sandbox("down", *(["--all"] if damage == "cut" else []))
        assert stranger.poll() is None
    assert down.stderr.count(f"warning: {journal_of(sandbox)} is damaged") == 1
    assert re.search(r"stopped [34] processes of lost: .*ps:0 \(pid \d+\)", down.stderr)
    assert sandbox.leftovers() == []
    sandbox("up", spec)
    assert sandbox.status()["state"] == "running"


@pytest.mark.slow
def test_down_goes_on_when_its_command_dies_and_kills_what_takes_no_other_signal(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGSTOP)
    sandbox.kill_agent()
    journal_of(sandbox).write_text("{")
    agents = set(sandbox.pids("agent on"))
    down = sandbox.start("down", "--grace", "1")
    wait_for(lambda: set(sandbox.pids("agent on")) - agents or down.poll() == 0)
    down.kill()
    down.communicate()
    sandbox("down", "--grace", "1", code=None)
    wait_for(lambda: not sandbox.leftovers())
