"""The messages between the coordinator of a group of processes and the hosts that start these processes.

A host connects to the coordinator, and both prove that they know the group's secret; see `processes.groups.link`. Then
each line is one message: an order of the coordinator or a report of a host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from tfcluster.core.groups import MemberObservation
from tfcluster.errors import ClusterError
from tfcluster.protocol.codec import Message
from tfcluster.protocol.serialization import DecodeError, decode, to_json


@dataclass(frozen=True)
class Reserve:
    """The order to reserve a port for each member on the host."""


@dataclass(frozen=True)
class Start:
    """The order to start the members on the host."""

    attempt: int  # how often the group was started before
    addresses: dict[str, list[str]]  # of all members of the group, by job


@dataclass(frozen=True)
class Stop:
    """The order to end all members."""

    seconds: float  # between SIGTERM and SIGKILL


@dataclass(frozen=True)
class StopIdle:
    """The order to end, from now on, the workers that do not compute: they served a member that has exited."""

    seconds: float  # how long a worker must not have computed


@dataclass(frozen=True)
class SignalOrder:
    """The order to pass on to all members a signal that the command of the group has received."""

    number: int


@dataclass(frozen=True)
class HoldOutput:
    """The order to read what members print only when it can be stored; without that, members that print wait."""

    is_full: bool  # it cannot be stored now: the command that follows the run has not read what is stored


@dataclass(frozen=True)
class End:
    """The order to exit: the group has ended."""

    exit_code: int


@dataclass(frozen=True)
class Ports:
    """The report of the ports that are reserved."""

    ports: list[int]  # of the members on the host, in the order of their ranks


@dataclass(frozen=True)
class Started:
    """The report that a member was started."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Output:
    """The report of a member's output."""

    rank: int
    stream: str  # `stdout` or `stderr`
    data: str  # bytes that are not UTF-8 are escaped (`surrogateescape`)


@dataclass(frozen=True)
class Measured:
    """The report of a member's `tfcluster.metric`."""

    rank: int
    event: dict[str, Any]  # the event of the run that has it


@dataclass(frozen=True)
class Observed:
    """The report that the agent's observation of a member has changed."""

    rank: int
    observation: MemberObservation


@dataclass(frozen=True)
class Exited:
    """The report that a member has exited."""

    rank: int
    exit_code: int  # negative if a signal has ended the member
    failure: str  # the exception that ended it, in one line; empty if there was none
    was_idle: bool  # the host has ended it because it did not compute (`StopIdle`)


@dataclass(frozen=True)
class Unable:
    """The report that the host cannot carry out an order."""

    problem: str


Order = Reserve | Start | Stop | StopIdle | SignalOrder | HoldOutput | End
Report = Ports | Started | Output | Measured | Observed | Exited | Unable
_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in (*get_args(Order), *get_args(Report))}


def to_message(value: Order | Report) -> Message:
    """Return the message that has an order or a report."""
    return {"kind": type(value).__name__.lower(), "value": to_json(value)}


def from_message(message: Message) -> Any:
    """Return the order or the report in a message, or raise a ClusterError if it has neither."""
    kind = _KINDS.get(str(message.get("kind")))
    if kind is None:
        raise ClusterError(f"an unknown message arrived: {message.get('kind')!r:.80}")
    try:
        return decode(kind, message.get("value"))
    except DecodeError as error:
        raise ClusterError(f"a wrong message {message['kind']!r} arrived: {error.without_value}") from None
