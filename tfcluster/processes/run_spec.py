"""The description of a run, the files in its folder, and which process drives it."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfcluster.core.programs import ProgramTraits
from tfcluster.errors import ClusterError
from tfcluster.process_handle import ProcessHandle
from tfcluster.processes.run_events import RunEventLog
from tfcluster.protocol.codec import encode

#: The names of the files in a run's folder.
EVENTS, OUTPUT = "events.jsonl", "output.log"
#: The folder, in a run's folder, of the file that was uploaded with the run.
SENT = "sent"
# The symbolic link, in a run's folder, whose target names the driver of the run.
_CLAIM = "driver"


@dataclass(frozen=True)
class RunSpec:
    """The description of a run, which a driver executes.

    Attributes:
        run: The run's id.
        cluster: The cluster's name.
        program: The name of the program.
        traits: What is to be known of the program without importing it.
        folder: The run's folder, for its events and output.
        addresses: The `host:port` of every task, by job.
        head: The `host:port` of the head task.
        devices: The full names of the devices to compute on.
        parameters: The program's parameters.
        notes: Notes for the user about the choice of devices, which become part of the result.
        sent: The name of the file that is uploaded with the run, or None if there is none.
        log_placement: Have the servers print on which device they place each operation.
        peers: The names and addresses of the hosts that may connect to the program's ports, or None if all may.
    """

    run: str
    cluster: str
    program: str
    traits: ProgramTraits
    folder: str
    addresses: dict[str, list[str]]
    head: str
    devices: list[str]
    parameters: dict[str, Any]
    notes: list[str]
    sent: str | None = None
    log_placement: bool = False
    peers: dict[str, str] | None = None

    @property
    def run_folder(self) -> Path:
        """Return the run's folder as a path."""
        return Path(self.folder)

    @property
    def sent_path(self) -> Path | None:
        """Return the path of the file that is uploaded with the run, or None if there is none."""
        return None if self.sent is None else self.run_folder / SENT / self.sent

    def emit(self, event: str, **fields: Any) -> None:
        """Write an event to the run's event log.

        Args:
            event: The type of the event.
            **fields: The fields of the event.

        Raises:
            ClusterError: The event cannot be written.
        """
        path = self.run_folder / EVENTS
        try:
            RunEventLog(path).emit(event, **fields)
        except OSError as problem:
            raise ClusterError(f"{path} cannot be written: {problem.strerror}") from problem
        except ValueError as problem:  # JSON has neither infinities nor NaN
            raise ClusterError(f"the run's event {event!r} has a number that is not finite") from problem


@dataclass(frozen=True)
class ProgramEnd:
    """The message that a script's process sends to its driver after all of the script's code has run.

    Attributes:
        exit_code: The exit code of the script.
        failure: The exception that ended the script, in one line; empty if there was none.
        seconds: The run time in seconds.
        work: The work of each device, as in `Context.work`.
        notes: Notes for the user about the run.
    """

    exit_code: int
    failure: str
    seconds: float
    work: dict[str, dict[str, int]]
    notes: list[str]

    def send(self, link: socket.socket) -> None:
        """Send the message to the driver."""
        link.sendall(encode(asdict(self)))


def acquire_run(folder: Path, process: ProcessHandle | None) -> bool:
    """Acquire a run for one process, or for none, atomically and permanently.

    A driver acquires its run before it does anything else. An agent that finds a run without a driver acquires it for
    no process. A driver that starts late then exits at once, and a driver whose agent died between the fork and the
    entry in the journal is still found.

    Args:
        folder: The run's folder.
        process: The driver, or None if the run is to have no driver.

    Returns:
        False if the run has been acquired before.
    """
    target = f"{process.pid}:{process.start_time}" if process else "nobody"
    try:
        os.symlink(target, folder / _CLAIM)  # atomic: the link and its target are created in one step
    except FileExistsError:
        return False
    return True


def driver_of(folder: Path) -> ProcessHandle | None:
    """Return the process that drives or drove a run, or None if the run has not been acquired by a process."""
    try:
        pid, _, start_time = os.readlink(folder / _CLAIM).partition(":")
        return ProcessHandle(int(pid), int(start_time))
    except (OSError, ValueError):
        return None
