"""A disk that is full, read-only or hangs, other files in the state folder, and a host that allows no process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.test_journal import damage_by_folder, damage_by_pipe
from tests.conftest import Sandbox, wait_for
from tests.control_groups import no_more_processes
from tests.strikes import fill
from tests.stuck import is_stuck, silent_file_system
from tfcluster import settings

SPEC = "name: tough\njobs:\n  worker: {tasks: 2}\nrestart: {backoff: {initial: 0.5, max: 0.5}, limit: 1000 in 60}\n"


# Its result does not fit into the last page of the run's file.
ENDS_WHEN_TOLD = """
import os, sys, time
import tfcluster

tfcluster.progress(1, 2)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
tfcluster.result("x" * 5000)
"""


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


@pytest.mark.slow
def test_a_full_disk(sandbox: Sandbox, mount: Mount) -> None:
    mount("-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs")
    spec = sandbox.spec(SPEC)
    state = sandbox.folder / "state"
    filler = fill(state)
    error = sandbox("up", spec, code=1).stderr
    assert re.match(rf"error: {state}/\S*: the agent cannot start: No space left on device\nhint: Make room", error)
    assert sandbox.processes() == {}
    filler.unlink()
    sandbox("up", spec)
    script, end = sandbox.folder / "script.py", sandbox.folder / "end"
    script.write_text(ENDS_WHEN_TOLD)
    run = sandbox.start("run", "-o", "json", script, end)
    identity = json.loads(run.stdout.readline())["run"]
    assert json.loads(run.stdout.readline())["event"] == "progress"
    filler = fill(state)
    end.touch()
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


# With the default limit of restarts. Each change of the journal is a snapshot: a line might fit into its last page.
LIMITED = "name: tough\njobs:\n  worker: {tasks: 2}\n"


SNAPSHOTS = {"JOURNAL_CHANGES_MIN_BYTES": -1, "JOURNAL_CHANGES_FACTOR": -1}


def check_that_it_waits(sandbox: Sandbox, reason: str) -> None:
    """Kill worker:0, and check that it waits for several seconds, and that status, wait and the other task know so."""
    for _ in range(3):
        if pid := sandbox.task("worker:0", code=None)["pid"]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
    time.sleep(3 * settings.START_RETRY_SECONDS)
    task, other = sandbox.status(code=4)["tasks"]
    assert (task["state"], task["restarts"], task["pid"]) == ("backing-off", 0, None)
    assert (task["last_exit"]["reason"], task["last_exit"]["detail"]) == ("not started", f"waiting: {reason}")
    assert (other["state"], other["restarts"]) == ("ready", 0)
    assert f"worker:0: not started at {time.strftime('%Y-')}" in sandbox("status", code=4).stdout
    assert f": waiting: {reason}\n" in sandbox("wait", "--ready", "--timeout", "1", code=124).stderr


def check_that_it_starts(sandbox: Sandbox, reason: str) -> None:
    """Check that worker:0 starts by itself at once, now that it can, and that the events say why it did not."""
    task = sandbox.wait_until("running", seconds=60)["tasks"][0]  # a second or two on an idle machine
    assert task["restarts"] == 1
    events = sandbox.json_lines("events")
    assert f"waiting: {reason}" in [event["detail"] for event in events if event["event"] == "blocked"]
    # The journal has what happened meanwhile.
    sandbox.kill_agent()
    after = sandbox.wait_until("running")["tasks"][0]
    assert (after["pid"], after["restarts"]) == (task["pid"], 1)
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_a_task_waits_for_room_on_a_full_disk(sandbox: Sandbox, mount: Mount) -> None:
    mount("-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs")
    sandbox("up", sandbox.spec(LIMITED), env=sandbox.with_settings(SNAPSHOTS))
    state = sandbox.folder / "state"
    filler = fill(state)
    reason = f"the disk of {state}/tfcluster/tough/localhost is full (ENOSPC)"
    check_that_it_waits(sandbox, reason)
    # The next agent, which cannot write its snapshot either, adopts one task and lets the other wait.
    other = sandbox.task("worker:1", code=4)["pid"]
    sandbox.kill_agent()
    check_that_it_waits(sandbox, reason)
    assert sandbox.task("worker:1", code=4)["pid"] == other
    assert "0 MiB" in sandbox("up", code=1).stderr
    starts = sandbox("logs", "worker:0").stdout.count("Started server")
    for writer in [pid for pid, title in sandbox.processes().items() if title.endswith(" log writer")]:
        os.kill(writer, signal.SIGKILL)  # its successor cannot write its lock
    time.sleep(4 * settings.HELPER_RESTART_SECONDS)
    filler.unlink()
    wait_for(lambda: sandbox("logs", "worker:0").stdout.count("Started server") > starts)
    check_that_it_starts(sandbox, reason)


@pytest.mark.slow
def test_a_disk_that_has_become_read_only(sandbox: Sandbox, mount: Mount) -> None:
    state = sandbox.folder / "state"

    def make_read_only() -> None:
        mount("--bind", "-o", "ro", state)
        subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)

    mount("-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs")
    sandbox("up", sandbox.spec(LIMITED), env=sandbox.with_settings(SNAPSHOTS))
    make_read_only()
    reason = f"the disk of {state}/tfcluster/tough/localhost is read-only (EROFS)"
    check_that_it_waits(sandbox, reason)
    subprocess.run(["umount", state], check=True)
    check_that_it_starts(sandbox, reason)
    # `down` stops all, and says that it cannot clear the journal.
    sandbox("up")
    make_read_only()
    error = sandbox("down", code=1).stderr
    assert "all tasks of 'tough' are stopped, but" in error
    assert "cannot be cleared: Read-only file system" in error
    assert sandbox.status(code=4)["state"] == "stopped"
    assert sandbox.pids(" worker:") == []
    subprocess.run(["umount", state], check=True)
    sandbox("down")
    assert sandbox.leftovers() == []
    # A host on which nothing can be written starts no agent.
    # The kernel lets go of the inodes that an agent has watched a moment after its end.
    wait_for(lambda: not subprocess.run(["mount", "-o", "remount,ro", state], check=False).returncode)
    assert "Read-only file system" in sandbox("up", code=1).stderr
    assert sandbox.processes() == {}


@pytest.mark.slow
def test_a_task_waits_until_a_process_is_allowed_for_it(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(LIMITED))
    reason = "no more processes are allowed (`ulimit -u`, or pids.max of the cgroup) (EAGAIN)"
    with no_more_processes(sandbox.agent()):
        check_that_it_waits(sandbox, reason)
    check_that_it_starts(sandbox, reason)


def replace_by_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("name", "damage", "alive"),
    [
        ("agent.log", damage_by_pipe, True),
        pytest.param("agent.log", damage_by_folder, False, marks=pytest.mark.slow),
        pytest.param("events.log", damage_by_pipe, False, marks=pytest.mark.slow),
        pytest.param("worker:0.log", replace_by_zeros, True, marks=pytest.mark.slow),
    ],
)
def test_something_else_in_the_place_of_a_file_or_folder(
    sandbox: Sandbox, name: str, damage: Callable[[Path], None], alive: bool
) -> None:
    """Opening a named pipe waits for ever, and /dev/zero has no end."""
    sandbox("up", sandbox.spec(SPEC))
    if not alive:
        sandbox.kill_agent()
    damage(sandbox.folder / "state/tfcluster/tough/localhost/logs" / name)
    [task, _] = sandbox.status()["tasks"]
    os.kill(task["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["pid"] != task["pid"])
    sandbox("down")
    assert sandbox.leftovers() == []


READ = """
import os
import tensorflow.compat.v1 as tf

with tf.Graph().as_default(), tf.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    with tf.device("/job:worker/task:1"):
        session.run(tf.io.read_file(os.environ["STUCK_FILE"]))
"""


@pytest.mark.slow
@pytest.mark.needs("root")
def test_down_names_a_server_that_waits_for_its_disk(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGKILL does not end it."""
    mounted = tmp_path_factory.mktemp("mounted")  # not beside the script, whose folder Python looks through
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_settings({"KILL_SECONDS": 2.0}))
    pid = sandbox.task("worker:1")["pid"]
    with silent_file_system(mounted):
        run = sandbox.start("run", sandbox.spec(READ, "read.py"), env={"STUCK_FILE": str(mounted / "data")})
        wait_for(lambda: is_stuck(pid))
        failed = sandbox("down", "--grace", "1", code=1, timeout=40)
        assert f"worker:1 (pid {pid}) of cluster 'tough': still running 2 s after SIGKILL" in failed.stderr
        assert not [title for title in sandbox.processes().values() if title.split()[-1] in ("ps:0", "worker:0")]
        run.wait(30)
    assert "tough is down" in sandbox("down").stdout
