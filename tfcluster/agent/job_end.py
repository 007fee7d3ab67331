"""When the job of Slurm ends in which this agent runs; runs get SIGTERM some time before.

Slurm's own signal (`--signal` of sbatch) is sent once, and the time of a job can be changed while it runs. So the agent
has a timer, and asks Slurm again before it warns, and when a status is asked for. Only the agent of the head task's
host does, where runs are: one question for a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable

from tfcluster import settings
from tfcluster.agent.event_loop import BackgroundTasks, ChangeNotifier, wait_for_first
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.slurm import HostJob, JobStatus, seconds_until
from tfcluster.errors import ClusterError

_logger = logging.getLogger(__name__)


class JobEnd:
    """Knows when the job of a cluster ends; `warn` is called when it ends soon, once for each time that it has."""

    def __init__(self, title: str, host: str, supervisor: TaskSupervisor, warn: Callable[[], None]) -> None:
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

    def _job(self) -> HostJob | None:
        topology = self._supervisor.topology
        if topology is None or topology.head().host != self._host:
            return None
        return next((host.job for host in topology.hosts if host.name == self._host), None)

    def status(self) -> JobStatus | None:
        """Return the job's part of the status of the cluster; None if it is not known here."""
        job, topology = self._job(), self._supervisor.topology
        if job is None or topology is None or not self._is_known:
            return None
        nodes = tuple(host.address for host in topology.hosts)
        return JobStatus(job.id, "running", nodes, seconds_until(self._ends, time.time()))

    async def check(self) -> None:
        """Ask when the job ends, and warn the runs if that is soon. Without an answer, the last one counts."""
        job = self._job()
        if job is None:
            return
        limit, before = settings.SLURM_COMMAND_SECONDS, self._ends
        self._asked_at = time.monotonic()
        try:
            self._ends = await run_in_child(self._title, lambda: _ask(job, limit), 2 * limit)
            self._is_known = True
        except ClusterError as error:
            if error.message != self._last_error:
                _logger.warning("when Slurm job %d ends is not known: %s: %s", job.id, job.squeue, error.message)
            self._last_error = error.message
        if self._ends != before:
            self._changed.notify()
        if self._ends is None or self._ends == self._warned_of or self._ends - time.time() > job.grace:
            return
        self._warned_of = self._ends
        if job.grace:
            self._warn()

    async def refresh(self) -> None:
        """Ask again for a status, unless that was a moment ago; wait for a slow Slurm only for a moment."""
        if self._job() is not None and time.monotonic() - self._asked_at >= settings.SLURM_END_AGE_SECONDS:
            self._background.start(self.check, key=self)
            await asyncio.wait(self._background.tasks.values(), timeout=settings.SLURM_END_WAIT_SECONDS)

    async def pause(self) -> None:
        """Wait until runs are to be warned; until the next attempt, if Slurm has not answered; or for another job."""
        job = self._job()
        with contextlib.suppress(TimeoutError):
            while self._job() == job:
                changed = self._changed, self._supervisor.changed
                async with asyncio.timeout(self._seconds(job)):
                    await wait_for_first(*(each.wait_for_change(each.count) for each in changed))

    def _seconds(self, job: HostJob | None) -> float | None:
        """Return how long to wait until Slurm is asked about a job; None if that depends on a change."""
        if job is not None and not self._is_known:
            return settings.SLURM_END_RETRY_SECONDS
        if job is None or self._ends is None or self._ends == self._warned_of:
            return None
        return max(0.0, self._ends - job.grace - time.time())


def _ask(job: HostJob, limit: float) -> int | None:
    """Ask Slurm when a job ends, in Unix seconds; None if its time is not limited. This blocks."""
    program = job.squeue if os.path.exists(job.squeue) else shutil.which("squeue") or job.squeue
    try:
        result = subprocess.run(
            [program, "--noheader", f"--jobs={job.id}", "--format=%e"],
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=limit,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(str(error)) from error
    ends = result.stdout.split()  # a line for each component of a heterogeneous job
    if result.returncode or not ends:
        raise ClusterError(result.stderr.strip() or "it does not know the job")
    return min((int(each) for each in ends if each.isdecimal()), default=None)
