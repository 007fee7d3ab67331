"""What TensorBoard prints before and while it serves, and at its end; which folders it is given."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.project import Project
from tfcluster import settings
from tfcluster.client.tensorboard import TensorBoard, named_folders
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.remote.tensorboard import TensorBoardRequest, tensorboard_argv

# Prints on the standard error more than a pipe holds, as a login shell with a long greeting may.
_PRINTS_MUCH = "import sys; sys.stderr.write('line of a greeting\\n' * 20000); sys.stderr.flush();"
_START = json.dumps({"python": "python", "logdir": "/logs", "is_installed": True})


def process(end: str) -> TensorBoard:
    return TensorBoard(LOCAL_HOST, [sys.executable, "-c", f"{_PRINTS_MUCH}{end}"], None)


def test_a_process_that_prints_much_first_is_not_blocked_and_its_last_lines_explain_an_end() -> None:
    serves = f"print({MESSAGE_PREFIX + _START!r}, flush=True); print('http://localhost:6007/', file=sys.stderr)"
    with process(f"{serves}; sys.stderr.flush(); sys.stdin.read()") as tensorboard:
        assert tensorboard.read_start().logdir == "/logs"
        assert tensorboard.read_port() == 6007
    with process("sys.exit('no module')") as tensorboard, pytest.raises(ClusterError, match="exit code 1") as error:
        tensorboard.read_start()
    assert error.value.message.endswith("\n  no module")


def test_a_tensorboard_that_does_not_say_where_it_serves_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "TENSORBOARD_START_SECONDS", 1.0)
    starts = f"print({MESSAGE_PREFIX + _START!r}, flush=True); print('waits for a lock', file=sys.stderr, flush=True)"
    with process(f"{starts}; sys.stdin.read()") as tensorboard:
        tensorboard.read_start()
        with pytest.raises(ClusterError, match="has not said within 1 s where it serves") as error:
            tensorboard.read_port()
        assert error.value.message.endswith("\n  waits for a lock")


@pytest.mark.parametrize(
    ("parameters", "folders"),
    [
        ({}, []),
        ({"logdir": None, "steps": 3}, []),
        ({"logdir": "/data/logs"}, ["/data/logs"]),
        ({"args": ["--epochs", "3"], "cwd": "/w"}, []),
        ({"args": ["--logdir", "logs"], "cwd": "/w"}, ["/w/logs", "/r/logs"]),
        ({"args": ["-v", "--log-dir=/data/x=y"], "cwd": "/w"}, ["/data/x=y", "/data/x=y"]),
        ({"args": ["--model_dir", "m", "--logdir"], "cwd": "/w"}, ["/w/m", "/r/m"]),
        ({"args": ["--logdir=logs/run-{index}"], "cwd": "/w"}, ["/w/logs", "/r/logs"]),
        ({"args": ["--logdir={job}"], "cwd": "/w"}, []),
    ],
)
def test_folders(parameters: dict[str, Any], folders: list[str]) -> None:
    assert list(named_folders(parameters, "/r")) == folders


#: As in a Python that has no TensorBoard.
NOT_INSTALLED = {
    "TEST_HIDDEN_MODULES": "tensorboard",
    "PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{ROOT}",
}


def test_a_tensorboard_that_is_not_installed_is_said(project: Project) -> None:
    outcome = project.run("tensorboard .", env={**NOT_INSTALLED, "PATH": "/"})
    assert (outcome.code, outcome.stdout) == (1, "")
    assert f"TensorBoard is not installed for {sys.executable} on this machine" in outcome.stderr
    assert f"Install it: {shlex.quote(sys.executable)} -m pip install tensorboard" in outcome.stderr


def test_it_listens_on_the_loopback_device_alone_and_uses_no_gpu(tmp_path: Path) -> None:
    program = tmp_path / "tensorboard"  # the one of another Python
    program.write_text('#!/bin/sh\necho "$@"; pwd; echo "$CUDA_VISIBLE_DEVICES"\n')
    program.chmod(0o755)
    argv = tensorboard_argv(TensorBoardRequest((str(tmp_path),), port=6006), sys.executable, str(ROOT))
    environment = {**os.environ, **NOT_INSTALLED, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    output = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.splitlines()[-3:] == [f"--logdir {tmp_path} --host 127.0.0.1 --port 6006", "/", "-1"]
