"""Start TensorBoard on the machine that has its data, bound to the loopback device; this uses no agent."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from tfcluster import boot
from tfcluster.transport.remote.bootstrap import send_message


@dataclass(frozen=True)
class TensorBoardRequest:
    """The data that TensorBoard is to show."""

    folders: tuple[str, ...]  # the log folder: the first of these that exists; relative to the home folder
    run_folder: str | None = None  # shown if it has data and none of the others exists
    port: int = 0  # 0 for any


@dataclass(frozen=True)
class TensorBoardReport:
    """The message about the machine that is sent before TensorBoard starts."""

    python: str  # the Python that was asked for TensorBoard
    logdir: str | None  # None if there is none, so that nothing starts
    is_installed: bool  # otherwise nothing starts


def tensorboard_argv(start: TensorBoardRequest, python: str, code: str) -> list[str]:
    """Return the argv that starts TensorBoard, with tfcluster from the folder `code`."""
    return boot.command(__name__, main.__name__, json.dumps(asdict(start)), python=python, code=code)


def main(text: str) -> NoReturn:
    """Run TensorBoard on the host; the text is the `TensorBoardRequest`, as JSON."""
    start = TensorBoardRequest(**json.loads(text))
    logdir = _find_logdir(start.folders, start.run_folder)
    command = _find_command()
    send_message(asdict(TensorBoardReport(sys.executable, logdir, bool(command))))
    if logdir is None or not command:
        sys.exit(1)
    os.chdir("/")  # where there are no modules to import
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # it imports TensorFlow, which would take the memory of the GPUs
    os.execv(command[0], [*command, "--logdir", logdir, "--host", "127.0.0.1", "--port", str(start.port)])


def _find_logdir(folders: Iterable[str], run_folder: str | None) -> str | None:
    for folder in folders:
        path = Path(os.path.expanduser("~"), os.path.expanduser(folder))
        if path.is_dir():
            return str(path)
    files = [] if run_folder is None else [name for *_, names in os.walk(run_folder) for name in names]
    return run_folder if any("tfevents" in name or name.endswith(".xplane.pb") for name in files) else None


def _find_command() -> list[str]:
    """Return the argv of this Python's TensorBoard, else of the one on the path; empty if there is none."""
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    path = shutil.which("tensorboard")
    return [] if path is None else [path]
