"""The state directory: private, locked by one process, and cleaned up but for logs and runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.errors import ClusterError

_HOLDER = """
import sys
from pathlib import Path
from tfcluster.agent.state.state_dir import StateDir
folder = StateDir(Path(sys.argv[1]))
print(folder.lock(), flush=True)
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
    assert made.lock() is None
    return made


@pytest.fixture
def other(folders: Folders) -> StateDir:
    """The same folder, as another agent has it."""
    return folders()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def holder(folder: StateDir, *wrapper: str) -> subprocess.Popen[str]:
    """Another process that tries to lock the folder, says who has it, and lives until its input ends."""
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", _HOLDER, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_one_process_has_the_lock_until_it_ends(folders: Folders) -> None:
    folder = folders()
    with holder(folder) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "None\n"
        before = os.listdir("/proc/self/fd")
        assert folder.lock() == first.pid
        assert os.listdir("/proc/self/fd") == before
        first.kill()
    assert folder.lock() is None
    with holder(folder) as second:
        assert second.communicate()[0] == f"{os.getpid()}\n"


def test_a_deleted_lock_file_does_not_let_a_second_agent_start(folder: StateDir, other: StateDir) -> None:
    shutil.rmtree(folder.path)
    assert other.lock() == os.getpid()
    folder.unlock()
    assert other.lock() is None


@pytest.mark.needs("root")
def test_the_lock_file_excludes_an_agent_of_another_network_namespace(folder: StateDir) -> None:
    folder.write_lock(folder.path / "demo.secrets")
    with holder(folder, "unshare", "--net") as other:
        assert other.communicate()[0] == "0\n", "it may be on another machine, where pids are others"


async def test_a_lock_file_that_was_deleted_before_is_noticed(folder: StateDir) -> None:
    gone = asyncio.Event()
    (folder.path / "lock").unlink()
    folder.watch_lock(gone.set)
    assert gone.is_set()


@pytest.mark.parametrize("damage", ["delete", "move", "replace", "delete folder", "move folder", "move cluster"])
async def test_a_lock_file_that_is_gone_is_noticed(folder: StateDir, damage: str) -> None:
    gone = asyncio.Event()
    folder.watch_lock(gone.set)
    lock, aside = folder.path / "lock", folder.path.parent.with_name("aside")
    (folder.path / "socket").touch()  # what does not concern the lock
    lock.write_text("changed")
    damages: dict[str, Callable[[], object]] = {
        "delete": lock.unlink,
        "move": lambda: lock.rename(aside),
        "replace": lambda: (folder.path / "socket").replace(lock),
        "delete folder": lambda: shutil.rmtree(folder.path),
        "move folder": lambda: folder.path.rename(aside),
        "move cluster": lambda: folder.path.parent.rename(aside),
    }
    await asyncio.sleep(0)
    assert not gone.is_set()
    damages[damage]()
    async with asyncio.timeout(60):
        await gone.wait()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_removed_while_it_is_opened_is_recreated(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    folder, other = folders(), folders()
    real = fcntl.flock
    calls: list[int] = []

    def flock(fd: int, operation: int) -> None:
        if not calls:  # the agent before us leaves just now, and perhaps another one comes and goes
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            path.unlink()
            if replaced:
                path.touch()
        calls.append(fd)
        real(fd, operation)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", flock)
    assert folder.lock() is None
    monkeypatch.undo()
    assert len(calls) == 2
    assert len(os.listdir("/proc/self/fd")) == before + 2  # the two locks
    # What is locked is what the next one opens.
    assert other.lock() == os.getpid()


def test_folders_and_locks_are_for_this_user_alone(folders: Folders) -> None:
    folder = folders()
    previous = os.umask(0)
    try:
        for _ in range(2):
            folder.make()
        assert folder.lock() is None
    finally:
        os.umask(previous)
    assert {mode_of(path) for path in (folder.path, folder.logs, folder.runs)} == {0o700}
    assert mode_of(folder.path / "lock") == 0o600


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


_MAKERS = (SCRIPTS / "make_state_folders.py").read_text()


def test_agents_that_start_at_once_make_it_together(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _MAKERS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert (result.stdout, result.stderr) == ("", "")
