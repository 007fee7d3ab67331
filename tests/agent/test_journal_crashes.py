"""The journal across every crash: the agent killed, or the disk full, at any step, with or without a power loss.

The steps are the system calls of `os.files`. A power loss also takes back what was not on the disk: here the data of
every file that was not synced is anything at all, and names may have changed or not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_journal import RECORD
from tfcluster.agent.state.journal import Journal, Record
from tfcluster.os import files

OLD = Record(RECORD.topology, {}, RECORD.secrets)
NEW = RECORD

Work = Callable[[Journal], None]


class Crash(BaseException):
    """No handler catches it, as none catches SIGKILL."""


class Disk:
    """Counts steps, and knows what of each file is on the disk; in the place of the module `os`.

    The step with the number `fails_at` is not made and raises `problem`, with `always` every later writing too.
    """

    def __init__(self, fails_at: int, problem: BaseException, *, always: bool = False) -> None:
        self.step = -1
        self.failed = False
        self.unsynced: set[Path] = set()
        self._paths: dict[int, Path] = {}
        self._fails_at = fails_at
        self._problem = problem
        self._always = always

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int) -> int:
        self._before("open", path)
        fd = os.open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> int:
        self._before("write", self._paths[fd])
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        self._before("sync", self._paths[fd])
        os.fsync(fd)

    def close(self, fd: int) -> None:
        try:
            self._before("close", self._paths[fd])
        finally:
            os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        self._before("replace", target)
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        self._before("unlink", path)
        os.unlink(path)

    def _before(self, step: str, path: Path) -> None:
        self.step += 1
        if self.step == self._fails_at or (self.failed and self._always and step in ("open", "write", "sync")):
            self.failed = True
            if step in ("sync", "close"):  # it was written in part
                os.truncate(path, path.stat().st_size // 2)
            raise self._problem
        if step == "open":
            self.unsynced.add(path)
        elif step == "sync":
            self.unsynced.discard(path)
        elif step == "replace" and path.with_suffix(".json.new") in self.unsynced:
            self.unsynced.remove(path.with_suffix(".json.new"))
            self.unsynced.add(path)


def crashes(folder: Path, begin: Work, work: Work) -> Iterator[tuple[Journal, Disk]]:
    """The journal after a crash before each step of some work in turn, until the work has no further step."""
    for number in count():
        path = folder / str(number) / "journal.json"
        path.parent.mkdir()
        begin(Journal(path))
        disk = Disk(number, Crash())
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(files, "os", disk)
                work(Journal(path))
        except Crash:
            yield Journal(path), disk
        else:
            assert number > 2, "a work of so few steps was not looked at"
            return


CASES = [
    pytest.param(lambda journal: None, lambda journal: journal.write(NEW), [None, NEW], id="first"),
    pytest.param(lambda journal: journal.write(OLD), lambda journal: journal.write(NEW), [OLD, NEW], id="again"),
    pytest.param(lambda journal: journal.write(OLD), Journal.remove, [OLD, None], id="removal"),
]


@pytest.mark.parametrize(("begin", "work", "allowed"), CASES)
def test_an_agent_killed_at_any_step(tmp_path: Path, begin: Work, work: Work, allowed: list[Record | None]) -> None:
    records = []
    for journal, _ in crashes(tmp_path, begin, work):
        records.append(journal.read())
        # And the next agent goes on as if nothing had been.
        journal.write(NEW)
        assert journal.read() == NEW
        journal.remove()
        assert list(journal.path.parent.iterdir()) == []
    assert [record for record in records if record not in allowed] == []
    assert records == sorted(records, key=allowed.index), "once it is the new one, it stays"


@pytest.mark.parametrize("garbage", [b"", b"{", b"\0" * 4096, b"null"])
@pytest.mark.parametrize(("begin", "work", "allowed"), CASES)
def test_a_power_loss_at_any_step(
    tmp_path: Path, begin: Work, work: Work, allowed: list[Record | None], garbage: bytes
) -> None:
    for journal, disk in crashes(tmp_path, begin, work):
        for path in disk.unsynced:
            if path.exists():
                path.write_bytes(garbage)
        assert journal.read() in allowed, f"before step {disk.step}"


@pytest.mark.parametrize("always", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize(("begin", "work", "allowed"), CASES)
def test_a_disk_error_at_any_step(
    tmp_path: Path, begin: Work, work: Work, allowed: list[Record | None], number: int, always: bool
) -> None:
    old, new = allowed
    for step in count():
        path = tmp_path / str(step) / "journal.json"
        path.parent.mkdir()
        begin(Journal(path))
        disk = Disk(step, OSError(number, os.strerror(number)), always=always)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(files, "os", disk)
                work(Journal(path))
            expected = new
        except OSError:
            expected = old
        assert Journal(path).read() == expected, f"what was said of step {step} is not what is read"
        assert not path.with_suffix(".json.new").exists(), "it keeps nothing of a full disk"
        if not disk.failed:
            break


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    journal = Journal(tmp_path / "journal.json")
    journal.write(NEW)
    monkeypatch.undo()
    assert journal.read() == NEW
