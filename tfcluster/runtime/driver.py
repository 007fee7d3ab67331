"""The process that drives one run of a program against the cluster; it outlives the agent, and ends without it."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tfcluster.errors import ClusterError
from tfcluster.process import ProcessId
from tfcluster.runtime import child
from tfcluster.runtime.environment import without_proxy
from tfcluster.runtime.events import EventLog

#: The files of a run's folder.
EVENTS, OUTPUT = "events.jsonl", "output.log"
#: The folder in a run's folder that holds the file that was sent with it.
SENT = "sent"
# The link that says who drives the run.
_CLAIM = "driver"
_WATCH_SECONDS = 5.0
_PASSED_ON = re.compile(r"From /job:\S+:\s*")


@dataclass(frozen=True)
class Job:
    """What a driver has to do.

    Attributes:
        run: The run's id.
        cluster: The cluster's name.
        program: The bundled program.
        folder: The run's folder, for its events and output.
        addresses: `host:port` of every task, by job.
        head: `host:port` of the task that leads the cluster.
        devices: Full names of the devices to compute on.
        parameters: The program's own parameters.
        notes: What the user should know of the choice of devices; part of the result.
        sent: The name of the file that is sent with the run; None where there is none.
        log_placement: Have the servers print where they place each operation.
    """

    run: str
    cluster: str
    program: str
    folder: str
    addresses: dict[str, list[str]]
    head: str
    devices: list[str]
    parameters: dict[str, Any]
    notes: list[str]
    sent: str | None = None
    log_placement: bool = False

    @property
    def sent_path(self) -> Path | None:
        """Where the file that is sent with the run is."""
        return None if self.sent is None else Path(self.folder) / SENT / self.sent


def claim(folder: Path, process: ProcessId | None) -> bool:
    """Settle once and for all who drives a run: one process, or nobody. False when that is settled already.

    A driver claims its run before it does anything, and an agent that finds a run without a driver claims it for
    nobody: so neither a driver that starts late nor one whose agent died between the fork and the record is lost.

    Args:
        folder: The run's folder.
        process: The driver; None for nobody.
    """
    target = f"{process.pid}:{process.start_time}" if process else "nobody"
    try:
        os.symlink(target, folder / _CLAIM)  # made with what it says in one step, as editors lock their files
    except FileExistsError:
        return False
    return True


def claimed_by(folder: Path) -> ProcessId | None:
    """The process that drives or drove a run; None where nobody does."""
    try:
        pid, _, start_time = os.readlink(folder / _CLAIM).partition(":")
        return ProcessId(int(pid), int(start_time))
    except (OSError, ValueError):
        return None


class _CancelledError(BaseException):
    """Raised in the main thread by SIGTERM, past every `except Exception`."""


def import_tensorflow() -> None:
    """Import what every driver needs, before it is forked. Nothing here may start a session or touch a GPU.

    A driver is a client of the servers; it must not take a GPU's memory from them.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tfcluster.programs import session

    session.touch_lazy_modules()


def main(job: Job) -> NoReturn:
    """Drive one run and end the process: with 0 when it succeeded, with 1 when it failed."""
    folder = Path(job.folder)
    code = 1
    try:
        child.become(f"tfcluster: {job.cluster} {job.run}", log=folder / OUTPUT)
        signal.signal(signal.SIGTERM, _cancel)
        if not claim(folder, ProcessId.of(os.getpid())):
            os._exit(code)  # the run ended before it began
        threading.Thread(target=_end_with, args=(folder,), daemon=True).start()
        hosts = [address.rpartition(":")[0].strip("[]") for tasks in job.addresses.values() for address in tasks]
        os.environ.update(without_proxy(os.environ, hosts))
        code = _drive(job, partial(_tell, folder / EVENTS))
    except _CancelledError:
        code = 128 + signal.SIGTERM
    except ClusterError as problem:  # nothing can be told but to who reads the log
        print(problem.message, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # The interpreter's own end would wait for the threads of TensorFlow's sessions.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tell(path: Path, event: str, **fields: Any) -> None:
    """Write one event of the run.

    Raises:
        ClusterError: It cannot be written.
    """
    try:
        EventLog(path).emit(event, **fields)
    except OSError as problem:
        raise ClusterError(f"{path} cannot be written: {problem.strerror}") from problem
    except ValueError as problem:  # JSON has neither infinities nor NaN
        raise ClusterError(f"the run's event {event!r} has a number that is not finite") from problem


def _drive(job: Job, emit: Callable[..., None]) -> int:
    from tfcluster.programs.context import Context, set_this_run

    context = Context(
        job.run,
        job.addresses,
        tuple(job.devices),
        emit,
        head=job.head,
        folder=Path(job.folder),
        sent=job.sent_path,
        log_placement=job.log_placement,
    )
    set_this_run(context)
    try:
        program = importlib.import_module(f"tfcluster.programs.{job.program}")
        result = program.run(context, **job.parameters)
        emit(
            "result",
            run=job.run,
            program=job.program,
            state="succeeded",
            seconds=round(time.monotonic() - context.began, 6),
            result=result,
            devices=context.work,
            notes=[*job.notes, *context.notes],
        )
    except ClusterError as problem:
        emit("error", error=problem.to_json())
        return 1
    except Exception as problem:
        traceback.print_exc()
        emit("error", error=ClusterError(_first_line(problem)).to_json())
        return 1
    return 0


def _end_with(folder: Path) -> None:
    """End with the run's folder: no agent could find the driver any more, and nobody its result."""
    while folder.exists():
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def _first_line(problem: Exception) -> str:
    # TensorFlow heads the words of another task with a line that only says which task passed them on.
    text = [line for line in str(problem).strip().splitlines() if not _PASSED_ON.fullmatch(line)]
    return f"{type(problem).__name__}: {text[0]}" if text else type(problem).__name__


def _cancel(signal_number: int, frame: FrameType | None) -> None:
    raise _CancelledError
