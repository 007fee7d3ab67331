"""When this agent's host ends, as the job that it is in does; runs get SIGTERM some time before.

A scheduler's own signal is sent once, and the time of a job can be changed while it runs. So the agent has a timer, and
asks the provider of the host again before it warns, and when a status is asked for. Only the agent of the head task's
host does, where runs are: one question for all hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable

from tfcluster import settings
from tfcluster.agent.event_loop import BackgroundTasks, ChangeNotifier, wait_for_first
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.hosts import Host, Provided
from tfcluster.core.status import JobStatus
from tfcluster.errors import ClusterError
from tfcluster.providers import load_host_side
from tfcluster.providers.host_side import HostSide

_logger = logging.getLogger(__name__)


class HostEnd:
    """Knows when the host ends; `warn` is called with the cause when it ends soon, once for each end time."""

    def __init__(self, title: str, host: str, supervisor: TaskSupervisor, warn: Callable[[str], None]) -> None:
        self._title = title
        self._host = host
        self._supervisor = supervisor
        self._warn = warn
        self._is_known = False
        self._last_error = ""
        self._ends: int | None = None  # in Unix seconds; None if the time is not limited
        self._warned_of: int | None = None  # the end that runs have been warned of
        self._asked_at = -math.inf  # in monotonic seconds
        self._changed = ChangeNotifier()  # of the end
        self._background = BackgroundTasks()

    def _own_host(self) -> Host | None:
        topology = self._supervisor.topology
        return None if topology is None else next((each for each in topology.hosts if each.name == self._host), None)

    def _provided(self) -> Provided | None:
        """Return what provides this host, if this agent is the one that asks."""
        host, topology = self._own_host(), self._supervisor.topology
        return None if host is None or topology is None or topology.head().host != self._host else host.provided

    def _timed(self) -> HostSide | None:
        """Return the provider's side of the host if this agent is to know when it ends."""
        provided = self._provided()
        side = None if provided is None else load_host_side(provided)
        return None if side is None or side.grace is None else side

    def warn_now(self) -> None:
        """End the runs, as the host ends now."""
        host = self._own_host()
        provided = None if host is None else host.provided
        self._warn(HostSide.end_cause if provided is None else load_host_side(provided).end_cause)

    def status(self) -> JobStatus | None:
        """Return the job in the status of the cluster; None if there is none, or if it is not known here."""
        side, topology = self._timed(), self._supervisor.topology
        if side is None or topology is None or not self._is_known:
            return None
        ends_in = None if self._ends is None else max(0.0, self._ends - time.time())
        return side.job_status(tuple(host.address for host in topology.hosts), ends_in)

    async def check(self) -> None:
        """Ask when the host ends, and warn the runs if that is soon. Without an answer, the last one counts."""
        side = self._timed()
        if side is None or side.grace is None:
            return
        before, self._asked_at = self._ends, time.monotonic()
        try:
            self._ends = await run_in_child(self._title, side.read_end, settings.HOST_END_QUESTION_SECONDS)
            self._is_known = True
        except ClusterError as error:
            if error.message != self._last_error:
                _logger.warning("when this host ends is not known: %s", error.message)
            self._last_error = error.message
        if self._ends != before:
            self._changed.notify()
        if self._ends is None or self._ends == self._warned_of or self._ends - time.time() > side.grace:
            return
        self._warned_of = self._ends
        if side.grace:
            self._warn(side.end_cause)

    async def refresh(self) -> None:
        """Ask again for a status, unless that was a moment ago; wait for a slow answer only for a moment."""
        if self._timed() is not None and time.monotonic() - self._asked_at >= settings.HOST_END_AGE_SECONDS:
            self._background.start(self.check, key=self)
            await asyncio.wait(self._background.tasks.values(), timeout=settings.HOST_END_WAIT_SECONDS)

    async def pause(self) -> None:
        """Wait until runs are to be warned; until the next attempt, without an answer; or for another head or job."""
        provided, side = self._provided(), self._timed()
        with contextlib.suppress(TimeoutError):
            while self._provided() == provided:
                changed = self._changed, self._supervisor.changed
                async with asyncio.timeout(self._seconds(side)):
                    await wait_for_first(*(each.wait_for_change(each.count) for each in changed))

    def _seconds(self, side: HostSide | None) -> float | None:
        """Return how long to wait until the provider is asked; None if that depends on a change."""
        if side is None or side.grace is None:
            return None
        if not self._is_known:
            return settings.HOST_END_RETRY_SECONDS
        if self._ends is None or self._ends == self._warned_of:
            return None
        return max(0.0, self._ends - side.grace - time.time())
