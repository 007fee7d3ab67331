"""Clearing what a run has left on the servers: at its end, and later where one did not answer then."""

from __future__ import annotations

import asyncio

from tfcluster.agent.tasks.probe_client import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.process_handle import ProcessHandle

#: Seconds that a server has to clear a run's variables.
_SECONDS = 1.0
#: Seconds to wait before each further question to a server that did not answer: one that is stopped or busy.
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)

# Servers by their task's short name, each with its process; of one on another host that is not known.
_Servers = dict[str, ProcessHandle | None]


class ContainerCleaner:
    """Has the servers forget the variables of runs.

    Args:
        supervisor: The tasks of its topology are asked, and its history tells of those that never answered.
        prober: Asks.
    """

    def __init__(self, supervisor: Supervisor, prober: ProbeClient) -> None:
        self._supervisor = supervisor
        self._prober = prober
        self._background: set[asyncio.Task[None]] = set()

    async def clear(self, container: str) -> None:
        """Clear a container on every task; those that do not answer in time are asked again in the background."""
        left = await self._ask(container, self._servers())
        if left:
            again = asyncio.ensure_future(self._again(container, left))
            self._background.add(again)
            again.add_done_callback(self._background.discard)

    async def _again(self, container: str, left: _Servers) -> None:
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            left = await self._ask(container, left)
            if not left:
                return
        for short in left:
            self._supervisor.history.record("not cleared", task=short, detail=f"it keeps the variables of {container}")

    def _servers(self) -> _Servers:
        """The servers there are now."""
        tasks = self._supervisor.tasks.values()
        here: _Servers = {task.task.short: task.process for task in tasks if task.process}
        topology = self._supervisor.topology
        elsewhere = [task for task in topology.tasks if task.host != self._supervisor.host] if topology else []
        return {**here, **{task.short: None for task in elsewhere}}

    async def _ask(self, container: str, servers: _Servers) -> _Servers:
        """Ask those of some servers that are still there, as new ones have nothing to clear; what did not answer."""
        topology, now = self._supervisor.topology, self._servers()
        asking = {
            asyncio.ensure_future(self._prober.ask(task.address, _SECONDS, clear=container)): task.short
            for task in (topology.tasks if topology else ())
            if task.short in servers and task.short in now and servers[task.short] == now[task.short]
        }
        if not asking:
            return {}
        done, late = await asyncio.wait(asking, timeout=2 * _SECONDS)
        for question in late:
            question.cancel()
        answered = {question for question in done if question.result().verdict is ProbeOutcome.PROBE_OK}
        return {short: servers[short] for question, short in asking.items() if question not in answered}
