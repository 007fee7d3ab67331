"""A state folder in trouble: deleted underneath, on a disk that is full, on one that has become read-only."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.test_journal import damage_by_folder, damage_by_pipe
from tests.conftest import Sandbox, mostly_slow, wait_for

SPEC = "name: tough\njobs:\n  worker: {tasks: 2}\nrestart: {backoff: {initial: 0.5, max: 0.5}, limit: 1000 in 60}\n"

Mount = Callable[..., None]


@pytest.fixture
def mount(needs_root: None, sandbox: Sandbox) -> Iterator[Mount]:
    """Mounts over the sandbox's state folder; what is mounted goes with the test."""
    target = sandbox.folder / "state"
    target.mkdir()
    mounted = 0

    def mount(*arguments: str | Path) -> None:
        nonlocal mounted
        subprocess.run(["mount", *arguments, target], check=True)
        mounted += 1

    yield mount
    for _ in range(mounted):
        subprocess.run(["umount", "-l", target], check=False, capture_output=True)


def fill(folder: Path) -> Path:
    """Fill the disk of a folder to the last byte."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


def delete(folder: Path) -> None:
    """Remove a folder, if it is there, at one stroke: one that is removed file by file can be mended meanwhile."""
    if not folder.exists():
        return
    gone = folder.rename(folder.with_name("gone"))
    shutil.rmtree(gone)


@pytest.mark.slow
def test_a_deleted_state_folder_is_recreated(sandbox: Sandbox, tmp_path: Path) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    status = sandbox.status()
    pids = [task["pid"] for task in status["tasks"]]
    state = sandbox.folder / "state"
    delete(state)
    found = sandbox.status()
    assert [task["pid"] for task in found["tasks"]] == pids
    assert found["hosts"][0]["agent_pid"] == status["hosts"][0]["agent_pid"]
    # A command that looks for the agent elsewhere starts another one, which calls the one that there is.
    delete(state)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    assert "already" in sandbox("up", spec, env={"XDG_RUNTIME_DIR": str(elsewhere)}).stdout
    assert [task["pid"] for task in sandbox.status()["tasks"]] == pids
    # What is written again is what the next agent needs.
    delete(state)
    wait_for(lambda: list(state.glob("tfcluster/tough/localhost/journal.json")))
    sandbox.kill_agent()
    assert [task["pid"] for task in sandbox.wait_until("running")["tasks"]] == pids
    # A task that is started again finds a folder for its log.
    delete(state)
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["pid"] != pids[0])
    assert sandbox("logs", "worker:0").returncode == 0
    delete(state)
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_a_full_disk(sandbox: Sandbox, mount: Mount) -> None:
    mount("-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs")
    spec = sandbox.spec(SPEC)
    state = sandbox.folder / "state"
    filler = fill(state)
    error = sandbox("up", spec, code=1).stderr
    assert "No space left on device" in error
    assert sandbox.processes() == {}
    filler.unlink()
    # Each change is a snapshot: a line that is appended may still fit into the last page of the journal.
    sandbox("up", spec, env=sandbox.with_settings({"JOURNAL_CHANGES_MIN_BYTES": -1, "JOURNAL_CHANGES_FACTOR": -1}))
    before = sandbox.status()["tasks"]
    filler = fill(state)
    os.kill(before[0]["pid"], signal.SIGKILL)
    # Without a place in the journal a server may not run: the next agent would not know of it.
    tasks = sandbox.wait_until("degraded")["tasks"]
    assert (tasks[0]["state"], tasks[1]["pid"]) == ("backing-off", before[1]["pid"])
    filler.unlink()
    after = sandbox.wait_until("running")
    assert after["tasks"][0]["pid"] not in (None, before[0]["pid"])
    run = sandbox.start("run", "pi", "--samples", "1e14", "-o", "json")
    assert run.stdout is not None
    identity = json.loads(run.stdout.readline())["run"]
    assert json.loads(run.stdout.readline())["event"] == "progress"
    filler = fill(state)
    output, error = run.communicate(timeout=60)
    assert (run.returncode, error) == (1, "")
    result = json.loads(output.splitlines()[-1])
    assert (result["event"], result["state"]) == ("result", "failed")
    assert f"the driver of {identity} died" in result["error"]["message"]
    assert "No space left on device" in result["notes"][-1]
    assert f"the driver of {identity} died" in sandbox("attach", identity, code=1).stderr
    filler.unlink()
    fill(state)
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_a_disk_that_has_become_read_only(sandbox: Sandbox, mount: Mount) -> None:
    mount("-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs")
    spec = sandbox.spec(SPEC)
    state = sandbox.folder / "state"
    sandbox("up", spec)
    mount("--bind", "-o", "ro", state)
    subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
    before = sandbox.status()
    assert before["state"] == "running"
    os.kill(before["tasks"][0]["pid"], signal.SIGKILL)
    after = sandbox.wait_until("degraded")["tasks"]
    assert (after[0]["state"], after[1]["pid"]) == ("backing-off", before["tasks"][1]["pid"])
    error = sandbox("down", code=1).stderr
    assert "all tasks of 'tough' are stopped, but" in error
    assert "cannot be cleared: Read-only file system" in error
    status = sandbox.status(code=4)
    assert status["state"] == "stopped"
    assert [pid for pid, title in sandbox.processes().items() if " worker:" in title] == []
    subprocess.run(["umount", state], check=True)
    sandbox("down")
    assert sandbox.leftovers() == []
    # A host on which nothing can be written starts no agent.
    subprocess.run(["mount", "-o", "remount,ro", state], check=True)
    assert "Read-only file system" in sandbox("up", spec, code=1).stderr
    assert sandbox.processes() == {}


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def replace_by_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


REPLACED: list[tuple[str, Callable[[Path], None]]] = [
    ("state/tfcluster/tough/localhost/logs", replace_by_file),
    ("state/tfcluster/tough/localhost/runs", replace_by_file),
    ("state/tfcluster/tough/localhost/logs/agent.log", damage_by_pipe),
    ("state/tfcluster/tough/localhost/logs/agent.log", damage_by_folder),
    ("state/tfcluster/tough/localhost/logs/events.log", damage_by_pipe),
    ("state/tfcluster/tough/localhost/logs/events.log", replace_by_zeros),
    ("state/tfcluster/tough/localhost/logs/worker:0.log", replace_by_zeros),
    ("run/tfcluster/*", damage_by_folder),
]


@pytest.mark.parametrize("alive", mostly_slow([True, False], fast=[True]), ids=["agent", "no agent"])
@pytest.mark.parametrize(
    "number", mostly_slow(range(len(REPLACED)), fast=[0]), ids=lambda number: f"{REPLACED[number][0]} {number}"
)
def test_something_else_in_the_place_of_a_file_or_folder(sandbox: Sandbox, number: int, alive: bool) -> None:
    """Opening a named pipe waits for ever, and /dev/zero has no end."""
    sandbox("up", sandbox.spec(SPEC))
    if not alive:
        sandbox.kill_agent()
    pattern, damage = REPLACED[number]
    [path] = sandbox.folder.glob(pattern)
    damage(path)
    [task, _] = sandbox.status()["tasks"]
    os.kill(task["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["pid"] != task["pid"])
    sandbox("down")
    assert sandbox.leftovers() == []
