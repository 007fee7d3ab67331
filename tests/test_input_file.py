"""Files that the user names: pipes, devices and folders neither hang a command nor are read without end."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.project import Project
from tfcluster import settings
from tfcluster.input_file import open_input, read_input

ENDLESS = ["/dev/zero", "/dev/urandom", "/dev/full"]


def test_a_file_is_read_up_to_one_byte_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_input(path, 5) == b"12345"
    assert read_input(path, 3) == b"1234"
    assert read_input(Path("/dev/null"), 3) == b""


@pytest.mark.parametrize("path", ENDLESS)
def test_a_device_without_end_is_refused(path: str) -> None:
    with pytest.raises(OSError, match="this is a device, not a file"):
        open_input(Path(path))


def test_a_pipe_is_read_to_its_end_also_if_its_writer_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Timer(0.2, path.write_bytes, [b"late"])
    writer.start()
    assert read_input(path, 100) == b"late"
    writer.join()


def test_a_pipe_without_a_writer_or_that_may_not_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(settings, "PIPE_OPEN_SECONDS", 0.1)
    files, threads = os.listdir("/proc/self/fd"), {*threading.enumerate()}  # those of other tests may end meanwhile
    with pytest.raises(TimeoutError, match="no process writes to this pipe"):
        open_input(path)
    assert {*os.listdir("/proc/self/fd")} <= {*files}
    assert {*threading.enumerate()} <= threads

    def refuse(*arguments: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        open_input(path)


def test_commands_refuse_what_has_no_end(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PIPE_OPEN_SECONDS", 0.1)
    os.mkfifo(project.folder / "pipe")
    problem = "error: pipe: no process writes to this pipe\n"
    assert project.run("validate pipe") == (2, "", f"{problem}hint: tfcluster init writes a commented cluster.yaml\n")
    project.file("c.yaml", "hostfile: pipe\njobs: {worker: {tasks: 1}}\n")
    for line in ("validate c.yaml", "run mean pipe", "run linear --data pipe", "run script pipe"):
        code, _, error = project.run(line)
        assert (code, "no process writes to this pipe" in error) == (2, True), error
    code, _, error = project.run("run linear --data /dev/zero")
    assert (code, "'/dev/zero': this is a device, not a file" in error) == (2, True)


def test_a_hostfile_that_is_none_is_not_quoted(project: Project) -> None:
    project.file("secret", "root:$y$j9T$hash:20228:0:99999:7:::\n")
    project.file("c.yaml", "hostfile: secret\njobs: {worker: {tasks: 1}}\n")
    code, _, error = project.run("validate c.yaml")
    assert code == 2
    assert error.startswith("error: secret:1:1: expected the name of a host")
    assert "hash" not in error
