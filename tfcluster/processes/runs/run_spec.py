"""What the processes of a run share: its description, its event log, and the claim that names its driver."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.caller import Caller, OutputStreams
from tfcluster.core.code import CodeLocation
from tfcluster.core.groups import Group
from tfcluster.core.programs import ProgramTraits
from tfcluster.core.runs import RunOrigin
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST
from tfcluster.private_network import PrivateNetwork
from tfcluster.process_handle import ProcessHandle
from tfcluster.protocol.codec import Message, encode

#: The names of the files in a run's folder.
EVENTS, OUTPUT, OUTPUT_INDEX = "events.jsonl", "output.log", "output.index"
#: The file, in a run's folder, with the columns and lines of the command's terminal since it was resized.
TERMINAL_SIZE = "terminal"
#: The folder, in a run's folder, that the program finds as $TFCLUSTER_OUTPUT.
FILES = "files"
#: The folder, in a run's folder, of the file that was uploaded with the run.
UPLOAD = "upload"
# The symbolic link, in a run's folder, whose target names the driver of the run.
_CLAIM = "driver"


def append_event(path: Path, /, event: str, **fields: Any) -> None:
    """Append an event to a run's file, by a single write call, so that a reader does not see a partial line for long.

    Args:
        path: The file, which is created by the first event.
        event: The type of the event.
        **fields: The fields of the event, which must be serialisable as JSON.

    Raises:
        OSError: The event could not be written, or only a part of it.
    """
    line = encode({"event": event, **fields})
    # The file is opened for each event: a driver writes at most ten events per second, and the agent need not keep a
    # descriptor open for every run.
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = os.fstat(fd).st_size
        if end and os.pread(fd, 1, end - 1) != b"\n":  # a full disk truncated the last event
            line = b"\n" + line
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(fd)


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
        upload: The name of the file that is uploaded with the run, or None if there is none.
        log_placement: Have the servers print on which device they place each operation.
        peers: The names and addresses of the hosts that may connect to the program's ports, or None if all may.
        missing: Why each task that was not ready when the run was submitted was not, by its name.
        code: Where a script is in the code that was sent to this host; None for one that runs where it is.
        caller: What a script takes over from the command; None for other programs, and for a command on another host.
        streams: The standard output and standard error of a script; None for another program, which has one for both.
        host: The name of the host that the program runs on.
        origin: What the run is started from, for its record.
        group: The group of processes that the run consists of; None for a run of one process.
        member: The environment variables of a script that is a member of a group; None for any other.
        start_timeout: Seconds after which a script that waits for its tasks is stopped; None for no limit.
        network: The private network that the run's processes enter; None for none.
        notify: The command that the agent runs when the run has ended; None for none.
        ports: The ports in it to which the other hosts can connect; empty if there are no other hosts, or for none.
        output_limit: The bytes that what is stored of the run's output may take.
    """

    run: str
    cluster: str
    program: str
    traits: ProgramTraits
    folder: Path
    addresses: dict[str, list[str]]
    head: str
    devices: list[str]
    parameters: dict[str, Any]
    notes: list[str]
    upload: str | None = None
    log_placement: bool = False
    peers: dict[str, str] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    code: CodeLocation | None = None
    caller: Caller | None = None
    streams: OutputStreams | None = None
    host: str = LOCAL_HOST
    origin: RunOrigin | None = None
    group: Group | None = None
    member: dict[str, str] | None = field(default=None, repr=False)
    start_timeout: float | None = None
    network: PrivateNetwork | None = None
    notify: str | None = None
    ports: tuple[int, ...] = ()
    output_limit: int = settings.RUN_OUTPUT_BYTES

    @property
    def upload_path(self) -> Path | None:
        """Return the path of the file that is uploaded with the run, or None if there is none."""
        return None if self.upload is None else self.folder / UPLOAD / self.upload

    @property
    def output_folder(self) -> Path:
        """Return the folder for the files that the program writes for the user, who fetches them."""
        return self.folder / FILES

    def result_event(
        self, result: Any, seconds: float, *, devices: dict[str, dict[str, int]], notes: Sequence[str]
    ) -> Message:
        """Return the final event of this run, which has succeeded.

        Args:
            result: The result of the program.
            seconds: The duration of the run.
            devices: The work of each device, as in `Context.device_stats`.
            notes: Notes for the user, besides those of the choice of devices.
        """
        return {
            "event": "result",
            "run": self.run,
            "program": self.program,
            "state": "succeeded",
            "seconds": round(seconds, 6),
            "result": result,
            "devices": devices,
            "notes": [*self.notes, *notes],
        }

    def emit(self, event: str, **fields: Any) -> None:
        """Write an event to the run's event log.

        Args:
            event: The type of the event.
            **fields: The fields of the event.

        Raises:
            ClusterError: The event cannot be written.
        """
        path = self.folder / EVENTS
        try:
            append_event(path, event, **fields)
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
        work: The work of each device, as in `Context.device_stats`.
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
    target = f"{process.pid}:{process.start_time}" if process else "none"
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
