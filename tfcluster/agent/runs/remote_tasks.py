"""Health monitor for the tasks on other hosts, which the agent that drives runs probes while runs use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.agent.event_loop import BackgroundTasks
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome, ProbeResult, with_reason
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.devices import Device
from tfcluster.core.topology import PS_JOB, Task


@dataclass
class _PeerHealth:
    """The health of one remote task as its probes have shown it."""

    incarnation: int | None = None  # identifies the start of the task's server; None before the first answer
    misses: int = 0  # probes in a row without an answer


class RemoteTaskMonitor:
    """Monitors the health of the tasks that the agents on other hosts supervise.

    The other agents do not report the health of their tasks to this agent, so it probes the tasks itself. It does so
    only while a run is active.

    Args:
        in_use: Returns the names of the tasks that active runs use.
        on_change: Called when a task goes down or has recovered.
    """

    def __init__(
        self,
        supervisor: TaskSupervisor,
        prober: ProbeClient,
        in_use: Callable[[], Collection[str]],
        on_change: Callable[[], None],
    ) -> None:
        self.down: dict[str, str] = {}  # what has happened to each task that is down, as text, by the task's name
        self._supervisor = supervisor
        self._prober = prober
        self._in_use = in_use
        self._on_change = on_change
        self._health: dict[str, _PeerHealth] = {}
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._checks = BackgroundTasks()

    async def probe_all(self) -> tuple[list[Device], dict[str, str]]:
        """Probe every remote task for its devices before a run is submitted.

        Return the devices, and one text for each task that does not answer, by its name. The devices of such a task are
        those of its last answer.
        """
        tasks = self._tasks()
        results = await asyncio.gather(*map(self._probe_with_retry, tasks))
        for task, result in zip(tasks, results, strict=True):
            self._record_result(task, result)
            if result.devices:
                self._devices[task.name] = result.devices
        devices = [device for task in tasks for device in self._devices.get(task.name, ())]
        return devices, {
            task.name: with_reason(f"{_describe(task)} does not answer", result.reason)
            for task, result in zip(tasks, results, strict=True)
            if result.outcome is not ProbeOutcome.PROBE_OK
        }

    def schedule_checks(self) -> None:
        """Start a probe in the background of each remote task that active runs use."""
        if not (used := self._in_use()):
            self._health.clear()
            self.down.clear()
            return
        for task in self._tasks():
            if task.name in used:
                self._checks.start(self._check, task, key=task.name)

    async def refresh(self) -> None:
        """Probe the remote tasks that active runs use and wait for the results.

        A driver may have failed because of a lost task before this agent has noticed the loss.
        """
        used = self._in_use()
        await asyncio.gather(*(self._check(task) for task in self._tasks() if task.name in used))

    def _tasks(self) -> list[Task]:
        topology = self._supervisor.topology
        return [task for task in topology.tasks if task.host != self._supervisor.host] if topology else []

    async def _probe_with_retry(self, task: Task) -> ProbeResult:
        """Probe a task, and again by a new connection if it does not answer: one that was lost recovers slowly."""
        begin, seconds = time.monotonic(), settings.RUN_REMOTE_PROBE_SECONDS / 2
        for _ in range(settings.RUN_REMOTE_PROBE_RETRIES):
            result = await self._prober.probe(task.address, seconds)
            if result.outcome is ProbeOutcome.PROBE_OK or time.monotonic() > begin + 2 * seconds:
                break
            await asyncio.sleep(settings.RUN_REMOTE_PROBE_RETRY_SECONDS)
        return result

    async def _check(self, task: Task) -> None:
        self._record_result(task, await self._prober.probe(task.address, settings.PROBE_TIMEOUT_SECONDS))

    def _record_result(self, task: Task, result: ProbeResult) -> None:
        health = self._health.setdefault(task.name, _PeerHealth())
        if result.outcome is ProbeOutcome.SILENT:
            health.misses = settings.FAILED_PROBES_MAX if result.refused else health.misses + 1
            if health.misses >= settings.FAILED_PROBES_MAX:
                self._mark_down(task, with_reason("does not answer", result.reason))
        elif result.outcome is ProbeOutcome.PROBE_OK:
            health.misses = 0
            if health.incarnation not in (None, result.incarnation):
                self._mark_down(task, "was restarted" + (" and lost its variables" if task.job == PS_JOB else ""))
            health.incarnation = result.incarnation
            if self.down.pop(task.name, None) is not None:
                self._on_change()

    def _mark_down(self, task: Task, what: str) -> None:
        if task.name not in self.down:
            self.down[task.name] = f"{_describe(task)} {what}"
            self._on_change()


def _describe(task: Task) -> str:
    return f"{task.short} at {task.address} on {task.host}"
