"""What the processes of a run share: its plan, its event log, and the claim that names its driver."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.caller import Caller, OutputStreams
from tfcluster.core.code import CodeLocation
from tfcluster.core.groups import Group
from tfcluster.core.run_events import ResultEvent, RunEvent, to_record
from tfcluster.core.runs import RunOptions
from tfcluster.core.states import RunState
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.paths import LOCAL_HOST
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.codec import Message, encode

#: The names of the files in a run's folder.
EVENTS, OUTPUT, OUTPUT_INDEX = "events.jsonl", "output.log", "output.index"
#: The file, in a run's folder, with the columns and lines of the command's terminal since it was resized.
TERMINAL_SIZE = "terminal"
#: The file, in a run's folder, to which the processes of its program write their Python stacks.
STACKS = "stacks.txt"
#: The folder, in a run's folder, that the program finds as $TFCLUSTER_OUTPUT.
FILES = "files"
#: The folder, in a run's folder, of the file that was uploaded with the run.
UPLOAD = "upload"
# The symbolic link, in a run's folder, whose target names the driver of the run.
_CLAIM = "driver"


def append_event(path: Path, event: RunEvent | Message) -> None:
    """Append an event to a run's file, by a single write call, so that a reader does not see a partial line for long.

    The first event creates the file. A program's event, which is JSON values already, may be of any kind. Raises
    OSError: the event could not be written, or only a part of it.
    """
    line = encode(event if isinstance(event, dict) else to_record(event))
    # The file is opened for each event, as there are few: the agent need not keep a descriptor open for each run.
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
class RunPlan:
    """What the agent has decided on a run, which a driver executes."""

    run: str
    cluster: str
    options: RunOptions  # what the user asked for
    folder: Path  # for its events and output
    addresses: dict[str, list[str]]  # the `host:port` of every task, by job
    head: str  # the `host:port` of the head task
    devices: list[str]  # full names of those to compute on
    notes: list[str]  # for the user, about the choice of devices; they become part of the result
    first_notes: list[str] = field(default_factory=list)  # those of them that are shown when the run begins
    peers: dict[str, str] | None = None  # addresses, by host name, that may connect to its ports; None if all may
    late_devices: list[str] = field(default_factory=list)  # those to compute on as well, when their tasks answer
    missing: dict[str, str] = field(default_factory=dict)  # by task, why it was not ready when the run was submitted
    code: CodeLocation | None = None  # where the script is in the code that was sent; None if it runs where it is
    caller: Caller | None = None  # what a script takes over from a command on this host; None for other programs
    streams: OutputStreams | None = None  # the stdout and stderr of a script; None for others, which have one for both
    host: str = LOCAL_HOST  # the one that the program runs on
    group: Group | None = None  # None for a run of one process
    member: dict[str, str] | None = field(default=None, repr=False)  # environment variables of a member of a group
    trial: str | None = None  # the number of a trial of a sweep
    spans_hosts: bool = False  # whether its group has members on several hosts
    network: PrivateNetwork | None = None  # the one that the run's processes enter
    ports: tuple[int, ...] = ()  # those of `network` that other hosts can connect to; empty if there are no other hosts
    output_limit: int = settings.RUN_OUTPUT_BYTES  # the bytes that what is stored of the output may take

    def with_parameters(self, parameters: dict[str, Any]) -> RunPlan:
        """Return the plan of this run with other parameters of its program."""
        return replace(self, options=replace(self.options, parameters=parameters))

    @property
    def upload_path(self) -> Path | None:
        """Return the path of the file that is uploaded with the run, or None if there is none."""
        return None if self.options.upload is None else self.folder / UPLOAD / self.options.upload_name

    @property
    def output_folder(self) -> Path:
        """Return the folder for the files that the program writes for the user, who fetches them."""
        return self.folder / FILES / ("" if self.trial is None else f"trial-{self.trial}")

    def result_event(
        self, result: Any, seconds: float, *, devices: dict[str, dict[str, int]], notes: Sequence[str]
    ) -> ResultEvent:
        """Return the final event of this run, which has succeeded.

        `devices` is the work of each device, as in `Context.device_stats`. `notes` come besides those of the choice of
        devices.
        """
        state = RunState.SUCCEEDED.value
        seconds, notes = round(seconds, 6), [*self.notes, *notes]
        return ResultEvent(self.run, self.options.program, state, seconds, result, devices, notes)

    def emit(self, event: str, **fields: Any) -> None:
        """Write an event of the program; see `Context.emit`."""
        self.write({"event": event, **fields})

    def write(self, event: RunEvent | Message) -> None:
        """Write an event to the run's event log."""
        path = self.folder / EVENTS
        try:
            append_event(path, event)
        except OSError as problem:
            raise ClusterError(f"{path} cannot be written: {problem.strerror}") from problem
        except ValueError as problem:  # JSON has neither infinities nor NaN
            kind = event["event"] if isinstance(event, dict) else event.event
            raise ClusterError(f"the run's event {kind!r} has a number that is not finite") from problem


@dataclass(frozen=True)
class ProgramEnd:
    """The message that a program's process sends to its driver after all of the program's code has run."""

    exit_code: int
    failure: str  # the exception that ended a script, in one line, or what to append to the signal; can be empty
    seconds: float  # the run time
    work: dict[str, dict[str, int]]  # of each device, as in `Context.device_stats`
    notes: list[str]  # for the user
    result: Any = None  # what `tfcluster.result` was given
    error: dict[str, Any] | None = None  # why a program has failed, as `ClusterError.to_json` has it; none of a script
    hint: str = ""  # what to do about `failure`

    def send(self, link: socket.socket) -> None:
        """Send the message to the driver, on a line of its own, whatever the script has written to the socket."""
        link.sendall(b"\n" + encode({each.name: getattr(self, each.name) for each in fields(self)}))


#: The message that a script's process sends to its driver each time that Python is about to handle SIGINT.
INTERRUPT_HANDLED: Message = {"interrupt": "handled"}


def acquire_run(folder: Path, process: ProcessHandle | None) -> bool:
    """Acquire a run for one process, or for none, atomically and permanently; return False if it was acquired before.

    A driver acquires its run before it does anything else. An agent that finds a run without a driver acquires it for
    no process. A driver that starts late then exits at once, and a driver whose agent died between the fork and the
    entry in the journal is still found.
    """
    target = f"{process.pid}:{process.start_time}" if process else "none"
    try:
        os.symlink(target, folder / _CLAIM)  # atomic: the link and its target are created in one step
    except FileExistsError:
        return False
    return True


def release_run(folder: Path, *, has_ended: bool = True) -> None:
    """Let another driver acquire a run; that of one that has ended, whose events begin again."""
    for name in (EVENTS, _CLAIM) if has_ended else (_CLAIM,):
        (folder / name).unlink(missing_ok=True)


def driver_of(folder: Path) -> ProcessHandle | None:
    """Return the process that drives or drove a run, or None if the run has not been acquired by a process."""
    try:
        pid, _, start_time = os.readlink(folder / _CLAIM).partition(":")
        return ProcessHandle(int(pid), int(start_time))
    except (OSError, ValueError):
        return None
