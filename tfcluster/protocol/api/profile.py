"""The method of an agent that captures traces from the profilers of its servers."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.protocol.api import Method, Request


@dataclass(frozen=True)
class TracePart:
    """The event of `ProfileRequest`: a part of a task's trace, in the order of its parts.

    Attributes:
        task: The short name of the task.
        data: The bytes of the part, in base64.
    """

    task: str
    data: str


@dataclass(frozen=True)
class ProfileReply:
    """The reply to `ProfileRequest`.

    Attributes:
        idle: The short names of the tasks on which nothing has run meanwhile, whose traces are left out.
        failures: Why there is no trace of a task, by its short name.
    """

    idle: tuple[str, ...]
    failures: dict[str, str]


@dataclass(frozen=True)
class ProfileRequest(Request[TracePart, ProfileReply], method=Method.PROFILE, is_slow=True):
    """Capture traces of tasks, all at the same time.

    Attributes:
        tasks: The short names of the tasks, which are on this host.
        seconds: How long to trace.
    """

    tasks: tuple[str, ...]
    seconds: float
