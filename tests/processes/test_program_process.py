"""A program whose stacks have no place runs all the same."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tfcluster.processes.runs.program_process import enable_stack_dump
from tfcluster.processes.runs.run_plan import STACKS


def test_without_a_high_descriptor_the_file_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[os.stat_result] = []

    def refuse(fd: int, *arguments: int) -> int:
        opened.append(os.fstat(fd))
        raise OSError

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    enable_stack_dump(tmp_path)
    assert [each.st_ino for each in opened] == [(tmp_path / STACKS).stat().st_ino]
    files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert os.path.realpath(tmp_path / STACKS) not in files
