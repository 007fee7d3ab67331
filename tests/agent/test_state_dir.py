"""The state directory: private, locked by one process, and cleaned up but for logs and runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfcluster import paths, settings
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.errors import ClusterError
from tfcluster.os import procfs

_HOLDER = """
import sys
from pathlib import Path
from tfcluster.agent.state.state_dir import StateDir
print(StateDir(Path(sys.argv[1])).lock(), flush=True)
sys.stdin.read()
"""

Folders = Callable[[], StateDir]


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    """Makes a further StateFolder of the same path, as another agent would; their locks go with the test."""
    created: list[StateDir] = []

    def folder() -> StateDir:
        created.append(StateDir(tmp_path / "demo" / "localhost"))
        return created[-1]

    yield folder
    for each in created:
        each.unlock()


@pytest.fixture
def folder(folders: Folders) -> StateDir:
    """A folder that this agent has locked."""
    made = folders()
    made.make()
    assert made.lock()
    return made


@pytest.fixture
def other(folders: Folders) -> StateDir:
    """The same folder, as another agent has it."""
    return folders()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def holder(folder: StateDir) -> subprocess.Popen[str]:
    """Another process that tries to lock the folder, says whether it could, and lives until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_one_process_has_the_lock_until_it_ends(folders: Folders) -> None:
    folder = folders()
    folder.make()
    with holder(folder) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "True\n"
        before = os.listdir("/proc/self/fd")
        assert not folder.lock()
        assert os.listdir("/proc/self/fd") == before
        first.kill()
    assert folder.lock()
    with holder(folder) as second:
        assert second.communicate()[0] == "False\n"


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_removed_while_it_is_opened_is_recreated(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, replaced: bool, which: int
) -> None:
    folder, other = folders(), folders()
    folder.make()
    real = fcntl.flock
    calls: list[int] = []

    def flock(fd: int, operation: int) -> None:
        if len(calls) == which:  # the agent before us leaves just now, and perhaps another one comes and goes
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            path.unlink()
            if replaced:
                path.touch()
        calls.append(fd)
        real(fd, operation)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", flock)
    assert folder.lock()
    monkeypatch.undo()
    assert len(calls) == 3
    assert len(os.listdir("/proc/self/fd")) == before + 2  # the two locks
    # What is locked is what the next one opens.
    assert not other.lock()


def test_a_deleted_folder_stays_locked_and_is_recreated(folder: StateDir, other: StateDir, tmp_path: Path) -> None:
    folder.publish_socket(tmp_path / "socket")
    where = (folder.path / "lock").read_text()
    on_recreated: list[None] = []
    folder.on_recreated = lambda: on_recreated.append(None)
    assert not folder.repair()
    shutil.rmtree(folder.path.parent)
    other.make()
    assert not other.lock()
    before = len(os.listdir("/proc/self/fd"))
    assert folder.repair()
    assert not folder.repair()
    assert on_recreated == [None]
    assert len(os.listdir("/proc/self/fd")) == before
    assert (folder.path / "lock").read_text() == where
    assert not other.lock()
    shutil.rmtree(folder.logs)
    assert folder.repair()
    assert folder.logs.is_dir()


def test_a_folder_that_cannot_be_recreated_is_reported_and_recreated_later(folder: StateDir) -> None:
    shutil.rmtree(folder.path)
    folder.path.touch()
    for _ in range(2):
        with pytest.raises(ClusterError, match="cannot make the state folder"):
            folder.repair()
    folder.path.unlink()
    assert folder.repair()


def test_the_first_lock_excludes_an_agent_of_another_network_namespace(
    folder: StateDir, other: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "namespace", lambda kind, pid=None: 1)  # the name of the second lock has it
    before = os.listdir("/proc/self/fd")
    assert not other.lock()
    assert os.listdir("/proc/self/fd") == before
    shutil.rmtree(folder.path)
    other.make()
    assert other.lock()
    with pytest.raises(ClusterError, match="another agent has locked it"):
        folder.repair()


def test_a_removed_second_lock_is_recreated(folder: StateDir, other: StateDir, tmp_path: Path) -> None:
    assert folder._second_lock is not None
    path = folder._second_lock.path
    before = os.listdir("/proc/self/fd")
    for _ in range(2):
        path.unlink()
        folder.restore_second_lock()
        assert len(os.listdir("/proc/self/fd")) == len(before)
        shutil.rmtree(folder.path)
        assert not other.lock(), "only the second one is left"
        assert folder.repair()
    folder.clean_up()
    assert not path.exists()


def test_without_a_runtime_folder_the_second_lock_is_in_a_private_one(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOGIN_RUNTIME_FOLDERS", str(tmp_path / "run"))
    monkeypatch.setattr(settings, "TEMPORARY_FOLDER", str(tmp_path))
    state = tmp_path / "state"
    monkeypatch.setattr(paths, "_state_home", state)
    folder, other = folders(), folders()
    folder.make()
    assert folder.lock()
    usual = tmp_path / f"tfcluster-{os.getuid()}"
    assert len(list(usual.iterdir())) == 1
    shutil.rmtree(usual)
    usual.touch()  # as another account could
    folder.restore_second_lock()
    private = state / ".private"
    assert len(list(private.iterdir())) == 1
    assert mode_of(private) == 0o700
    shutil.rmtree(folder.path)
    assert not other.lock()


def test_folders_and_locks_are_for_this_user_alone(folders: Folders) -> None:
    folder = folders()
    previous = os.umask(0)
    try:
        for _ in range(2):
            folder.make()
        assert folder.lock()
    finally:
        os.umask(previous)
    assert folder._second_lock is not None
    assert {mode_of(path) for path in (folder.path, folder.logs, folder.runs)} == {0o700}
    assert {mode_of(path) for path in (folder.path / "lock", folder._second_lock.path)} == {0o600}


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError) as caught:
        StateDir(tmp_path / "file" / "localhost").make()
    assert str(tmp_path / "file") in caught.value.message
    assert caught.value.message.endswith(": cannot make the state folder: Not a directory")
    assert "XDG_STATE_HOME" in caught.value.hint


def test_the_logged_tasks_are_those_with_a_log(folder: StateDir) -> None:
    for short in ("worker:1", "ps:0", "worker:0"):
        folder.log_of(short).touch()
    folder.log_of("worker:1").with_name("worker:1.log.1").touch()
    folder.agent_log.touch()
    folder.fork_server_log.touch()
    folder.events.touch()
    assert folder.logged_tasks() == ["ps:0", "worker:0", "worker:1"]
    assert StateDir(folder.path / "none").logged_tasks() == []


def test_cleanup_removes_empty_folders_and_keeps_that_of_another_host(folder: StateDir, tmp_path: Path) -> None:
    other = tmp_path / "demo" / "alpha"
    folder.journal.path.write_text("{}")
    folder.agent_log.touch()
    folder.fork_server_log.touch()
    other.mkdir()
    folder.clean_up()
    assert list(tmp_path.rglob("*")) == [other.parent, other]
    other.rmdir()
    folder.make()
    for _ in range(2):  # with nothing there any more
        folder.clean_up()
    assert list(tmp_path.iterdir()) == []


def test_cleanup_keeps_only_logs_and_runs(folder: StateDir) -> None:
    folder.journal.path.write_text("{}")
    folder.journal.path.with_suffix(".json.new").write_text("{")
    folder.journal.path.with_suffix(".copy").write_text("{}")
    folder.agent_log.write_text("a traceback")
    folder.fork_server_log.touch()
    folder.log_of("worker:0").write_text("served")
    folder.log_of("worker:1").touch()
    (folder.runs / "pi-1").mkdir()
    folder.clean_up()
    assert sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*")) == [
        "logs",
        "logs/agent.log",
        "logs/worker:0.log",
        "logs/worker:1.log",
        "runs",
        "runs/pi-1",
    ]


# Four agents make fifty state folders at the same moments, and print what went wrong.
_MAKERS = """
import multiprocessing, os, sys
from pathlib import Path
from tfcluster.agent.state.state_dir import StateDir
barrier = multiprocessing.get_context("fork").Barrier(4)
for _ in range(3):
    if not os.fork():
        break
for number in range(50):
    barrier.wait(60)
    try:
        StateDir(Path(sys.argv[1]) / str(number)).make()
    except Exception as error:
        print(error, flush=True)
"""


def test_agents_that_start_at_once_make_it_together(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _MAKERS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert (result.stdout, result.stderr) == ("", "")
