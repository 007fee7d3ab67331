"""The journal across every crash: the agent killed, or the disk full, at any step, with or without a power loss.

The steps are the system calls of `os.files`, see `Disk` of crash_world.py. A power loss also takes back what was not
synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.agent.crash_world import AgentDiedError, Disk
from tests.agent.test_journal import RECORD
from tfcluster.agent.state.journal import Journal, Record
from tfcluster.os import files

OLD = Record(RECORD.topology, {}, RECORD.secrets)
NEW = RECORD

Work = Callable[[Journal], None]
CASES = [
    pytest.param(lambda journal: None, lambda journal: journal.write(NEW), [None, NEW], id="first"),
    pytest.param(lambda journal: journal.write(OLD), lambda journal: journal.write(NEW), [OLD, NEW], id="again"),
    pytest.param(lambda journal: journal.write(OLD), Journal.remove, [OLD, None], id="removal"),
]


def attempts(
    folder: Path, begin: Work, work: Work, error: OSError | None = None, *, fails_always: bool = False
) -> Iterator[tuple[Journal, Disk, bool]]:
    """The journal after some work, its disk, and whether the work has failed: at each of its steps in turn, then not.

    It fails with an error of the disk, or else by the death of the agent.
    """
    for number in count():
        journal = Journal(folder / str(number) / "journal.json")
        journal.path.parent.mkdir()
        begin(journal)
        disk = Disk()
        disk.steps_left, disk.error, disk.fails_always = number, error, fails_always
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "os", disk)
            try:
                work(Journal(journal.path))
                has_failed = False
            except (AgentDiedError, OSError):
                has_failed = True
        yield Journal(journal.path), disk, has_failed
        if not (disk.is_dead or disk.has_failed):
            assert number > 2, "a work of so few steps was not looked at"
            return


@pytest.mark.parametrize(("begin", "work", "allowed"), CASES)
def test_an_agent_killed_at_any_step(tmp_path: Path, begin: Work, work: Work, allowed: list[Record | None]) -> None:
    records = []
    for journal, _, _ in attempts(tmp_path, begin, work):
        records.append(journal.read())
        # And the next agent goes on as if nothing had been.
        journal.write(NEW)
        assert journal.read() == NEW
        journal.remove()
        assert list(journal.path.parent.iterdir()) == []
    assert [record for record in records if record not in allowed] == []
    assert records == sorted(records, key=allowed.index), "once it is the new one, it stays"
    assert records[-1] == allowed[1]


@pytest.mark.parametrize(("share", "leaves_zeros"), [(0.0, False), (0.01, False), (0.9, False), (0.0, True)])
@pytest.mark.parametrize(("begin", "work", "allowed"), CASES)
def test_a_power_loss_at_any_step(
    tmp_path: Path, begin: Work, work: Work, allowed: list[Record | None], share: float, leaves_zeros: bool
) -> None:
    for journal, disk, _ in attempts(tmp_path, begin, work):
        disk.lose_power(share, leaves_zeros=leaves_zeros)
        assert journal.read() in allowed, journal.path


@pytest.mark.parametrize("fails_always", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize(("begin", "work", "allowed"), CASES)
def test_a_disk_error_at_any_step(
    tmp_path: Path, begin: Work, work: Work, allowed: list[Record | None], number: int, fails_always: bool
) -> None:
    old, new = allowed
    error = OSError(number, os.strerror(number))
    for journal, _, has_failed in attempts(tmp_path, begin, work, error, fails_always=fails_always):
        assert journal.read() == (old if has_failed else new), f"{journal.path}: not what was said"
        assert not journal.path.with_suffix(".json.new").exists(), "it keeps nothing of a full disk"


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    journal = Journal(tmp_path / "journal.json")
    journal.write(NEW)
    monkeypatch.undo()
    assert journal.read() == NEW
