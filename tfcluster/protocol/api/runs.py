"""The methods of an agent that concern runs of programs. They go to the agent on the host of the head task."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Any, NoReturn

from tfcluster.core.caller import Caller, OutputStreams
from tfcluster.core.code import CodeLocation
from tfcluster.core.runs import RunOptions
from tfcluster.core.states import RunState
from tfcluster.protocol.api import Done, Request
from tfcluster.records import record_class


@record_class(frozen=True)
class EventRecord:
    """An event of a run."""

    # The event as the run's file has it: one of `core.run_events`, or of a kind that the program defines.
    record: dict[str, Any]


@record_class(frozen=True)
class RunRequest(Request[EventRecord, Done], method="run", is_slow=True, changes=True):
    """Submit a run and send its events up to the result.

    If the run has an upload, the command sends it as soon as the agent grants a window, which is after the first event.
    """

    options: RunOptions  # what the user asks for
    detach: bool  # whether to send only the first event, as soon as the command may disconnect
    cancel_on_disconnect: bool  # whether the run is cancelled if the command disconnects
    # Where a script is in the code that was sent to its host; None for one that runs where it is.
    code: CodeLocation | None = None
    # What a script takes over from the command; None for other programs, and for a command on another host.
    caller: Caller | None = None
    streams: OutputStreams | None = None  # the standard output and standard error of a script; None for other programs
    # What the hosts of a group have to know to connect to each other, in hexadecimal digits; empty for a run of one
    # process.
    secret: str = field(default="", repr=False)


@record_class(frozen=True)
class JoinRequest(Request[NoReturn, Done], method="join", changes=True):
    """Start the members of a group on this host; the group's run is led by another host."""

    run: str  # the id of the group's run, also on this host
    options: RunOptions  # what the user asks for
    coordinator: str  # the address of the group's coordinator
    secret: str = field(repr=False)  # as for `RunRequest`
    code: CodeLocation  # where the script is in the code that was sent to this host


#: The kind of the first event that a command gets if it has received events before; it is none of the run's.
ATTACHED = "attached"


@record_class(frozen=True)
class AttachRequest(Request[EventRecord, Done], method="attach"):
    """Send the events of a run up to the result, from the first one that the command has not received yet."""

    run: str  # the run's id, or a unique prefix of it
    events: int  # how many events, without those of output, the command has received
    # How many bytes of the output the command has received, with those that it was told are missing; None to send none.
    output: int | None
    cancel_on_disconnect: bool  # as for `RunRequest`
    only_result: bool = False  # whether to send nothing but the run's id, at once, and the result
    # The request that has submitted the run, with what is written to no file: if its agent died before the driver had
    # started, this agent starts it. None from other commands.
    again: RunRequest | None = None


@record_class(frozen=True)
class CancelReply:
    """The reply to `CancelRequest`."""

    run: str  # the run's id


@record_class(frozen=True)
class CancelRequest(Request[NoReturn, CancelReply], method="cancel", changes=True):
    """Cancel a run. A run that has ended already is not changed."""

    run: str  # the run's id, or a unique prefix of it
    interrupt: bool = False  # whether a script gets SIGINT instead, on which it may end by itself or continue


class ScriptSignal(StrEnum):
    """A signal that a command has received and passes on to its script."""

    WINCH = "SIGWINCH"
    TSTP = "SIGTSTP"
    CONT = "SIGCONT"
    USR1 = "SIGUSR1"
    USR2 = "SIGUSR2"


@record_class(frozen=True)
class SignalRequest(Request[NoReturn, Done], method="signal", changes=True):
    """Pass a signal on to a script; ignored if it does not run any more. For SIGINT see `CancelRequest`."""

    run: str  # the run's id
    signal: ScriptSignal  # the signal
    columns: int  # the width of the command's terminal
    lines: int  # the height of the command's terminal


@record_class(frozen=True)
class RunSummary:
    """A run, as `runs -o json` has it."""

    run: str  # the run's id
    program: str  # the name of the program
    parameters: dict[str, Any]  # the program's own parameters
    state: RunState  # the state
    seconds: float | None  # the duration in seconds
    started: float  # the Unix time of the submission, in seconds
    # The program's result; None if the run has not succeeded, unless a script has ended by itself or has reported
    # metrics, which it has even while it runs.
    result: dict[str, Any] | None
    error: dict[str, Any] | None  # why the run failed, as `ClusterError.to_json` has it; None if it did not fail
    timeout: float | None  # seconds after which the run is stopped; None for no limit
    # What the run was started from, see `RunOptions.describe_origin`; None if that is not known.
    origin: dict[str, Any] | None
    missing_output: int = 0  # how many bytes of the run's output are not stored any more
    script: str | None = None  # the script or the module, as `train.py`; None for another program
    ended: float | None = None  # the Unix time of its end, in seconds; None if it has not ended


@record_class(frozen=True)
class RunsReply:
    """The reply to `RunsRequest`."""

    runs: tuple[RunSummary, ...]  # the runs, the oldest first


@record_class(frozen=True)
class RunsRequest(Request[NoReturn, RunsReply], method="runs"):
    """List the runs of the cluster."""

    lines: int | None  # how many of the last runs to list; None for all


@record_class(frozen=True)
class FailingRunsReply:
    """The reply to `FailingRunsRequest`."""

    runs: tuple[str, ...]  # the ids of the runs, which fail if they use the tasks


@record_class(frozen=True)
class FailingRunsRequest(Request[NoReturn, FailingRunsReply], method="failing-runs"):
    """Return which of the active runs may fail when tasks are restarted; nothing is changed."""

    tasks: tuple[str, ...]  # the short names of the tasks, on any host
