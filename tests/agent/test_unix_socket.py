"""Unix sockets: a path of any length, and names that one process of a user holds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfcluster.os import unix_socket
from tfcluster.os.unix_socket import NameLock, socket_address

_HOLDER = """
import sys
from tfcluster.os.unix_socket import NameLock
lock = NameLock.acquire(sys.argv[1])
print(lock is not None, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("length", [90, 107, 108, 200])
def test_a_socket_has_a_path_of_any_length(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("x" * max(1, length - len(f"{tmp_path}//socket"))) / "socket"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
        with socket_address(path) as address:
            listener.bind(address)
        listener.listen()
        assert path.is_socket()
        before = os.listdir("/proc/self/fd")
        with socket_address(path) as address:
            connection.connect(address)
        assert os.listdir("/proc/self/fd") == before


def test_one_process_has_a_name_until_it_ends() -> None:
    name = f"tfcluster-test-{os.getpid()}"
    assert NameLock.holder(name) == 0
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        before = os.listdir("/proc/self/fd")
        assert NameLock.acquire(name) is None
        assert NameLock.holder(name) == other.pid
        assert os.listdir("/proc/self/fd") == before
        other.kill()
    lock = NameLock.acquire(name)
    assert lock is not None
    assert NameLock.acquire(name) is None, "even for the process that has it"
    lock.release()
    assert NameLock.holder(name) == 0


def test_a_name_stays_taken_however_often_it_is_asked_for() -> None:
    name = f"tfcluster-test-{os.getpid()}"
    lock = NameLock.acquire(name)
    assert lock is not None
    before = os.listdir("/proc/self/fd")
    assert [NameLock.acquire(name) for _ in range(300)] == [None] * 300
    assert os.listdir("/proc/self/fd") == before
    lock.release()


def test_a_name_that_is_freed_at_this_moment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"tfcluster-test-{os.getpid()}"
    first = NameLock.acquire(name)
    assert first is not None
    real = unix_socket._inode_of

    def free_and_look(name: str) -> int | None:
        first.release()
        return real(name)

    monkeypatch.setattr(unix_socket, "_inode_of", free_and_look)
    lock = NameLock.acquire(name)
    monkeypatch.undo()
    assert lock is not None
    assert NameLock.acquire(name) is None, "it is held"
    lock.release()
