"""The methods of an agent that concern the state of the tasks on its host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tfcluster.core.status import ClusterStatus
from tfcluster.protocol.api import Done, Method, Request


@dataclass(frozen=True)
class StatusRequest(Request[NoReturn, ClusterStatus], method=Method.STATUS):
    """Return the status of the tasks and runs."""


@dataclass(frozen=True)
class WatchRequest(Request[ClusterStatus, Done], method=Method.WATCH, is_slow=True):
    """Send the status now and at each change. While a plan is being executed, no status is sent.

    Attributes:
        timeout: How long to watch, in seconds.
    """

    timeout: float


@dataclass(frozen=True)
class RestartRequest(Request[NoReturn, Done], method=Method.RESTART):
    """Stop tasks and start them again. The reply comes at once, without waiting for the restarts.

    Attributes:
        tasks: Names of tasks or jobs, as for `matching_tasks`; empty for all tasks.
        grace: Seconds between SIGTERM and SIGKILL.
    """

    tasks: tuple[str, ...]
    grace: float


@dataclass(frozen=True)
class DownReply:
    """The reply to `DownRequest`.

    Attributes:
        warning: What the user has to know about the shutdown; None if it was an ordinary one.
    """

    warning: str | None = None


@dataclass(frozen=True)
class DownRequest(Request[ClusterStatus, DownReply], method=Method.DOWN):
    """Stop all runs and tasks, then exit. This continues if the command disconnects.

    The events are the status at each change.

    Attributes:
        grace: Seconds between SIGTERM and SIGKILL. A repeated request can only shorten them.
    """

    grace: float
