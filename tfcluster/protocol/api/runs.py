"""The methods of an agent that concern runs of programs. They go to the agent on the host of the head task."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

from tfcluster.core.caller import Caller, OutputStreams
from tfcluster.core.code import CodeLocation
from tfcluster.core.runs import RunOptions
from tfcluster.core.states import RunState
from tfcluster.protocol.api import Done, Method, Request


@dataclass(frozen=True)
class EventRecord:
    """An event of a run.

    Attributes:
        record: The event as the run's file has it: one of `core.run_events`, or of a kind that the program defines.
    """

    record: dict[str, Any]


@dataclass(frozen=True)
class RunRequest(Request[EventRecord, Done], method=Method.RUN, is_slow=True, changes=True):
    """Submit a run and send its events up to the result.

    If the run has an upload, the command sends it as soon as the agent grants a window, which is after the first event.

    Attributes:
        options: What the user asks for.
        detach: Whether to send only the first event, as soon as the command may disconnect.
        cancel_on_disconnect: Whether the run is cancelled if the command disconnects.
        code: Where a script is in the code that was sent to its host; None for one that runs where it is.
        caller: What a script takes over from the command; None for other programs, and for a command on another host.
        streams: The standard output and standard error of a script; None for other programs.
        secret: What the hosts of a group have to know to connect to each other, in hexadecimal digits; empty for a run
            of one process.
    """

    options: RunOptions
    detach: bool
    cancel_on_disconnect: bool
    code: CodeLocation | None = None
    caller: Caller | None = None
    streams: OutputStreams | None = None
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class JoinRequest(Request[NoReturn, Done], method=Method.JOIN, changes=True):
    """Start the members of a group on this host; the group's run is led by another host.

    Attributes:
        run: The id of the group's run, also on this host.
        options: What the user asks for.
        coordinator: The address of the group's coordinator.
        secret: As for `RunRequest`.
        code: Where the script is in the code that was sent to this host.
    """

    run: str
    options: RunOptions
    coordinator: str
    secret: str = field(repr=False)
    code: CodeLocation


@dataclass(frozen=True)
class AttachRequest(Request[EventRecord, Done], method=Method.ATTACH):
    """Send the events of a run up to the result, from the first one that the command has not received yet.

    Attributes:
        run: The run's id, or a unique prefix of it.
        events: How many events, without those of output, the command has received.
        output: How many bytes of the output the command has received, with those that it was told are missing; None to
            send none.
        cancel_on_disconnect: As for `RunRequest`.
        only_result: Whether to send nothing but the run's id, at once, and the result.
        is_owner: Whether the output is for this command: a script that prints faster than it reads waits for it, as if
            it wrote to a pipe.
    """

    run: str
    events: int
    output: int | None
    cancel_on_disconnect: bool
    only_result: bool = False
    is_owner: bool = False


@dataclass(frozen=True)
class CancelReply:
    """The reply to `CancelRequest`.

    Attributes:
        run: The run's id.
    """

    run: str


@dataclass(frozen=True)
class CancelRequest(Request[NoReturn, CancelReply], method=Method.CANCEL, changes=True):
    """Cancel a run. A run that has ended already is not changed.

    Attributes:
        run: The run's id, or a unique prefix of it.
        interrupt: Whether a script gets SIGINT instead, on which it may end by itself or continue.
    """

    run: str
    interrupt: bool = False


class ScriptSignal(str, Enum):
    """A signal that a command has received and passes on to its script."""

    WINCH = "SIGWINCH"
    TSTP = "SIGTSTP"
    CONT = "SIGCONT"
    USR1 = "SIGUSR1"
    USR2 = "SIGUSR2"


@dataclass(frozen=True)
class SignalRequest(Request[NoReturn, Done], method=Method.SIGNAL, changes=True):
    """Pass a signal on to a script. It is ignored if the script does not run any more. For SIGINT see `CancelRequest`.

    Attributes:
        run: The run's id.
        signal: The signal.
        columns: The width of the command's terminal.
        lines: The height of the command's terminal.
    """

    run: str
    signal: ScriptSignal
    columns: int
    lines: int


@dataclass(frozen=True)
class RunSummary:
    """A run, as `runs -o json` has it.

    Attributes:
        run: The run's id.
        program: The name of the program.
        parameters: The program's own parameters.
        state: The state.
        seconds: The duration in seconds.
        started: The Unix time of the submission, in seconds.
        result: The program's result; None if the run has not succeeded, unless a script has ended by itself or has
            reported metrics, which it has even while it runs.
        error: Why the run failed, as `ClusterError.to_json` has it; None if it did not fail.
        timeout: Seconds after which the run is stopped; None for no limit.
        origin: What the run was started from, see `RunOptions.describe_origin`; None if that is not known.
        missing_output: How many bytes of the run's output are not stored any more.
        script: The script or the module, as `train.py`; None for another program.
    """

    run: str
    program: str
    parameters: dict[str, Any]
    state: RunState
    seconds: float | None
    started: float
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    timeout: float | None
    origin: dict[str, Any] | None
    missing_output: int = 0
    script: str | None = None


@dataclass(frozen=True)
class RunsReply:
    """The reply to `RunsRequest`.

    Attributes:
        runs: The runs, the oldest first.
    """

    runs: tuple[RunSummary, ...]


@dataclass(frozen=True)
class RunsRequest(Request[NoReturn, RunsReply], method=Method.RUNS):
    """List the runs of the cluster.

    Attributes:
        lines: How many of the last runs to list; None for all.
    """

    lines: int | None


@dataclass(frozen=True)
class FailingRunsReply:
    """The reply to `FailingRunsRequest`.

    Attributes:
        runs: The ids of the runs that fail.
        scripts: The ids of the runs of scripts, which fail if they use the tasks.
    """

    runs: tuple[str, ...]
    scripts: tuple[str, ...]


@dataclass(frozen=True)
class FailingRunsRequest(Request[NoReturn, FailingRunsReply], method=Method.FAILING_RUNS):
    """Return which of the active runs fail when tasks are restarted; nothing is changed.

    Attributes:
        tasks: The short names of the tasks, on any host.
    """

    tasks: tuple[str, ...]
