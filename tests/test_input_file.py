"""Files that the user names: pipes, devices and folders neither hang a command nor are read without end."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Sandbox
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
    before = os.listdir("/proc/self/fd"), threading.active_count()
    with pytest.raises(TimeoutError, match="no process writes to this pipe"):
        open_input(path)
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == before

    def refuse(*arguments: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        open_input(path)


def test_commands_refuse_what_has_no_end(sandbox: Sandbox) -> None:
    pipe = sandbox.folder / "pipe"
    os.mkfifo(pipe)
    fast = sandbox.with_settings({"PIPE_OPEN_SECONDS": 0.1})
    assert sandbox("validate", pipe, code=2, env=fast).stderr == f"error: {pipe}: no process writes to this pipe\n" + (
        "hint: tfcluster init writes a commented cluster.yaml\n"
    )
    (sandbox.folder / "c.yaml").write_text(f"hostfile: {pipe}\njobs: {{worker: {{tasks: 1}}}}\n")
    assert f"{pipe}: no process writes to this pipe" in sandbox("validate", "c.yaml", code=2, env=fast).stderr
    assert "'/dev/zero': this is a device, not a file" in sandbox("run", "linear", "--data", "/dev/zero", code=2).stderr
    for command in (("run", "mean"), ("run", "linear", "--data"), ("run", "script")):
        assert "no process writes to this pipe" in sandbox(*command, pipe, code=2, env=fast).stderr


def test_a_hostfile_that_is_none_is_not_quoted(sandbox: Sandbox) -> None:
    (sandbox.folder / "secret").write_text("root:$y$j9T$hash:20228:0:99999:7:::\n")
    (sandbox.folder / "c.yaml").write_text("hostfile: secret\njobs: {worker: {tasks: 1}}\n")
    error = sandbox("validate", "c.yaml", code=2).stderr
    assert error.startswith("error: secret:1:1: expected the name of a host")
    assert "hash" not in error
