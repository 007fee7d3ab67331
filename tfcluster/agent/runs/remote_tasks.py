"""The tasks on other hosts as the agent that drives runs sees them: by what they answer, while runs need them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tfcluster.agent.tasks.probe_client import ProbeClient, ProbeOutcome, ProbeResult
from tfcluster.agent.tasks.state_machine import FAILED_PROBES_ALLOWED
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.devices import Device
from tfcluster.core.topology import Task

# As in the checks of this host's tasks: less than the interval between two.
_CHECK_SECONDS = 1.5
# Before a run a connection may have to be made first, over a network that is not this machine's own.
_FIRST_SECONDS = 3.0
# gRPC says for up to half a second of a server that is back what it found before.
_AGAIN_SECONDS, _AGAIN_TIMES = 0.1, 10


@dataclass
class _PeerHealth:
    """What a task has answered: which start of its server that was, and how many questions it has missed since."""

    incarnation: int | None = None
    misses: int = 0


class RemoteTaskMonitor:
    """The tasks that other hosts' agents supervise.

    Nobody tells this agent how they are, and while no run goes on it does not ask.

    Args:
        supervisor: Knows the topology, and which host is this.
        prober: Asks.
        in_use: Gives the names of the tasks that the runs use which go on.
        news: Called when one is down, or up again.

    Attributes:
        down: In words what has happened to each task that is down, by its name.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        prober: ProbeClient,
        in_use: Callable[[], Collection[str]],
        news: Callable[[], None],
    ) -> None:
        self.down: dict[str, str] = {}
        self._supervisor = supervisor
        self._prober = prober
        self._in_use = in_use
        self._news = news
        self._seen: dict[str, _PeerHealth] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def ask_all(self) -> tuple[list[Device], list[str]]:
        """Ask every task for its devices, for a run that is to come.

        Returns:
            The devices, and in words which tasks do not answer.
        """
        tasks = self._tasks()
        answers = await asyncio.gather(*map(self._ask_patiently, tasks))
        for task, answer in zip(tasks, answers, strict=True):
            self._heard(task, answer)
        devices = [device for answer in answers for device in answer.devices]
        silent = [
            task for task, answer in zip(tasks, answers, strict=True) if answer.verdict is not ProbeOutcome.PROBE_OK
        ]
        return devices, [f"{_place(task)} does not answer" for task in silent]

    def check_soon(self) -> None:
        """Ask the tasks that runs use whether they answer."""
        if not (used := self._in_use()):
            self._seen.clear()
            self.down.clear()
            return
        for task in self._tasks():
            if task.name in used and task.name not in self._asking:
                self._asking[task.name] = asyncio.ensure_future(self._check_once(task))

    async def look(self) -> None:
        """Ask the tasks that runs use now: a driver that has failed may have met a loss before this agent did."""
        used = self._in_use()
        await asyncio.gather(*(self._check(task) for task in self._tasks() if task.name in used))

    def _tasks(self) -> list[Task]:
        topology = self._supervisor.topology
        return [task for task in topology.tasks if task.host != self._supervisor.host] if topology else []

    async def _ask_patiently(self, task: Task) -> ProbeResult:
        for _ in range(_AGAIN_TIMES):
            answer = await self._prober.ask(task.address, _FIRST_SECONDS)
            if not answer.refused:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        return answer

    async def _check_once(self, task: Task) -> None:
        try:
            await self._check(task)
        finally:
            del self._asking[task.name]

    async def _check(self, task: Task) -> None:
        self._heard(task, await self._prober.ask(task.address, _CHECK_SECONDS))

    def _heard(self, task: Task, answer: ProbeResult) -> None:
        seen = self._seen.setdefault(task.name, _PeerHealth())
        if answer.verdict is ProbeOutcome.SILENT:
            seen.misses = FAILED_PROBES_ALLOWED if answer.refused else seen.misses + 1
            if seen.misses >= FAILED_PROBES_ALLOWED:
                self._is_down(task, "does not answer")
        elif answer.verdict is ProbeOutcome.PROBE_OK:
            seen.misses = 0
            if seen.incarnation not in (None, answer.incarnation):
                self._is_down(task, "was started anew")
            seen.incarnation = answer.incarnation
            if self.down.pop(task.name, None) is not None:
                self._news()

    def _is_down(self, task: Task, what: str) -> None:
        if task.name not in self.down:
            self.down[task.name] = f"{_place(task)} {what}"
            self._news()


def _place(task: Task) -> str:
    return f"{task.short} at {task.address} on {task.host}"
