"""Asking the tasks whether they answer: at an interval, while somebody waits for one, and for their devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from tfcluster.agent.tasks.probe_client import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.state_machine import TaskEvent
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.devices import Device
from tfcluster.core.states import HAS_PROCESS, TaskState

#: Seconds between two health checks of a task. To ask 16 servers takes 15 ms of a processor: every two seconds a
#: cluster with nothing to do took 1.1 % of one, every three it takes 0.7 %.
HEALTH_INTERVAL = 3.0
# Less than the interval: the check of one interval has ended when that of the next is due.
_HEALTH_TIMEOUT = 1.5
_ASK_AGAIN_SECONDS, _ASK_AGAIN_TIMES = 0.05, 20


class HealthMonitor:
    """The health checks of a cluster's tasks.

    Args:
        prober: Asks them.
        tasks: Gives the tasks there are, by name.
        feed: Takes what came of a check to the task's machine.
    """

    def __init__(
        self,
        prober: ProbeClient,
        tasks: Callable[[], Mapping[str, TaskRuntime]],
        feed: Callable[[TaskRuntime, TaskEvent], None],
    ) -> None:
        self._prober = prober
        self._tasks = tasks
        self._feed = feed
        self._background: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Fork the prober early, so that it has imported gRPC when it is needed.

        Raises:
            OSError: It cannot be forked.
        """
        self._prober.start()

    def all_soon(self) -> None:
        """Ask every task whether it answers."""
        for task in self._tasks().values():
            task.sample_use()
            if task.machine.state in HAS_PROCESS and not task.being_checked:
                self._in_background(self.one(task))

    async def all_now(self, timeout: float) -> list[TaskRuntime]:
        """Ask every task at once; those that are not ready or are silent for `timeout` seconds."""
        tasks = list(self._tasks().values())
        asked = [task for task in tasks if task.machine.state is TaskState.READY]
        answers = await asyncio.gather(*(self._prober.ask(task.task.address, timeout) for task in asked))
        silent = set()
        for task, answer in zip(asked, answers, strict=True):
            if answer.verdict is ProbeOutcome.PROBE_OK:
                task.devices = answer.devices
            elif answer.verdict is ProbeOutcome.SILENT:
                silent.add(id(task))
        return [task for task in tasks if task not in asked or id(task) in silent]

    async def devices_now(self, timeout: float) -> tuple[list[Device], list[str]]:
        """The devices that the tasks name when they are asked now, and why some tasks name none.

        Args:
            timeout: Seconds that they have to answer.
        """
        silent = await self.all_now(timeout)
        answered = [task for task in self._tasks().values() if task not in silent]
        return [device for task in answered for device in task.devices], [task.trouble() for task in silent]

    def until_ready(self, task: TaskRuntime) -> None:
        """Ask a task that says it serves, and again soon, as long as it is not ready."""
        self._in_background(self._until_ready(task))

    async def one(self, task: TaskRuntime, *, patient: bool = False) -> None:
        """Ask a task whether it answers; with patience its silence does not count."""
        asked_of = task.process
        task.being_checked = True
        try:
            answer = await self._prober.ask(task.task.address, _HEALTH_TIMEOUT)
        finally:
            task.being_checked = False
        if asked_of is None or task.process != asked_of:
            return  # the answer, or silence, of a process that is gone says nothing of its successor
        if answer.verdict is ProbeOutcome.UNKNOWN or (patient and answer.verdict is ProbeOutcome.SILENT):
            return
        if answer.verdict is ProbeOutcome.PROBE_OK:
            task.devices = answer.devices
        self._feed(task, TaskEvent.PROBE_OK if answer.verdict is ProbeOutcome.PROBE_OK else TaskEvent.PROBE_FAILED)

    async def _until_ready(self, task: TaskRuntime) -> None:
        """Ask a task that says it serves, and again soon where a busy machine is slower to let it.

        Somebody waits for it. Only the checks at the interval count as missed.
        """
        process = task.process
        for _ in range(_ASK_AGAIN_TIMES):
            await self.one(task, patient=True)
            if task.process != process or task.machine.state is not TaskState.STARTING:
                return
            await asyncio.sleep(_ASK_AGAIN_SECONDS)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        doing = asyncio.get_running_loop().create_task(work)
        self._background.add(doing)
        doing.add_done_callback(self._background.discard)
