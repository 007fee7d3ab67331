"""The agent's socket, or the whole folder that it is in, removed by a cleaner of temporary files or a logout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.test_journal import damage_by_folder, damage_by_pipe
from tests.conftest import Sandbox, wait_for

pytestmark = pytest.mark.slow

SPEC = """
name: wiped
jobs:
  worker: {tasks: 2, env: {TOKEN: {secret: hunter2}}}
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> Iterator[Path]:
    """A folder of the test's own in the place of /tmp, for agents that cannot use XDG_RUNTIME_DIR."""
    folder = Path(tempfile.mkdtemp())
    folders = sandbox.with_settings({"TEMPORARY_FOLDER": str(folder), "LOGIN_RUNTIME_FOLDERS": "/nowhere"})
    monkeypatch.setenv("TEST_SETTINGS", folders["TEST_SETTINGS"])
    yield folder
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    shutil.rmtree(folder)
    assert files == []


def socket_of(sandbox: Sandbox) -> Path:
    return Path(json.loads((sandbox.folder / "state/tfcluster/wiped/localhost/lock").read_text())["socket"])


def remove(path: Path) -> None:
    path.unlink()


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent.parent)


def remove_folder_at_once(path: Path) -> None:
    shutil.rmtree(path.parent.parent.rename(path.parent.parent.with_name("gone")))


def replace_by_file(path: Path) -> None:
    path.unlink()
    path.touch()


def replace_by_dead_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def replace_folder_by_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.touch()


def replace_folders_by_file(path: Path) -> None:
    remove_folder(path)
    path.parent.parent.touch()


@pytest.mark.parametrize(
    "damage",
    [
        remove,
        remove_folder,
        remove_folder_at_once,
        replace_by_file,
        replace_by_dead_socket,
        replace_folder_by_file,
        replace_folders_by_file,
    ],
)
def test_commands_work_after_the_socket_was_removed(
    sandbox: Sandbox, temporary: Path, damage: Callable[[Path], None]
) -> None:
    sandbox("up", sandbox.spec(SPEC))
    before = sandbox.agent(), sandbox.tasks("pid")
    damage(socket_of(sandbox))
    assert (sandbox.agent(), sandbox.tasks("pid")) == before
    again = damage if socket_of(sandbox).is_relative_to(sandbox.folder) else remove  # /tmp itself is not removed
    again(socket_of(sandbox))
    sandbox("run", "pi", "--samples", "1e5")
    # The values of secrets are there for a new process, by this agent and by the next one.
    pid = before[1]["worker:0"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["pid"] != pid)
    secrets = wait_for(lambda: list(socket_of(sandbox).parent.glob("*.secrets")))
    assert "hunter2" in secrets[0].read_text()
    sandbox.kill_agent()
    sandbox("restart", "worker", "--yes")
    assert sandbox.wait_until("running")["tasks"][0]["last_exit"]["reason"] != "not started"
    again(socket_of(sandbox))
    sandbox("down")
    assert sandbox.leftovers() == []


def link_to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


LOCK_DAMAGE: dict[str, Callable[[Path], object]] = {
    "pipe": damage_by_pipe,
    "folder": damage_by_folder,
    "zeros": link_to_zeros,
    "nothing": lambda path: os.truncate(path, 0),
    "deep": lambda path: path.write_text("[" * 100_000),
    "no path": lambda path: path.write_text('{"socket": "/x\\u0000"}'),
    "long": lambda path: path.write_text(json.dumps({"socket": "/" + 200 * "x"})),
    "another place": lambda path: path.write_text('{"socket": "/nowhere"}'),
}


@pytest.mark.parametrize("alive", [True, False], ids=["agent", "no agent"])
@pytest.mark.parametrize("damage", LOCK_DAMAGE)
def test_commands_work_with_a_damaged_lock_file(sandbox: Sandbox, damage: str, alive: bool) -> None:
    sandbox("up", sandbox.spec(SPEC))
    socket = socket_of(sandbox)
    if not alive:
        sandbox.kill_agent()
    lock = sandbox.folder / "state/tfcluster/wiped/localhost/lock"
    LOCK_DAMAGE[damage](lock)
    sandbox.wait_until("running")
    wait_for(lambda: lock.is_file() and b"socket" in lock.read_bytes() and socket_of(sandbox) == socket)
    sandbox("down")
    assert sandbox.leftovers() == []
