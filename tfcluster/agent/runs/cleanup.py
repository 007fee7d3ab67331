"""Cleanup of the resource container of a run on the TensorFlow servers, with retry and back-off."""

from __future__ import annotations

import asyncio

from tfcluster import settings
from tfcluster.agent.tasks.probe_client import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.process_handle import ProcessHandle

# Maps a task's short name to the process of its server. A server on another host maps to None: its process is unknown.
_Servers = dict[str, ProcessHandle | None]


class ContainerCleaner:
    """Clears the resource containers of runs, with their variables, on all servers.

    Args:
        supervisor: The supervisor whose topology names the tasks, and whose event log records each server that never
            answered.
        prober: The client that sends the requests to the servers.
    """

    def __init__(self, supervisor: Supervisor, prober: ProbeClient) -> None:
        self._supervisor = supervisor
        self._prober = prober
        self._background: set[asyncio.Task[None]] = set()

    async def clear(self, container: str) -> None:
        """Clear a container on every task, and retry in the background on tasks that do not answer in time.

        Args:
            container: The name of the resource container: the run's id.
        """
        left = await self._ask(container, self._servers())
        if left:
            again = asyncio.ensure_future(self._again(container, left))
            self._background.add(again)
            again.add_done_callback(self._background.discard)

    async def _again(self, container: str, left: _Servers) -> None:
        for pause in settings.RUN_CLEANUP_BACKOFF_SECONDS:
            await asyncio.sleep(pause)
            left = await self._ask(container, left)
            if not left:
                return
        for short in left:
            self._supervisor.history.record("not cleared", task=short, detail=f"it keeps the variables of {container}")

    def _servers(self) -> _Servers:
        """Return the servers that exist now."""
        tasks = self._supervisor.tasks.values()
        here: _Servers = {task.task.short: task.process for task in tasks if task.process}
        topology = self._supervisor.topology
        elsewhere = [task for task in topology.tasks if task.host != self._supervisor.host] if topology else []
        return {**here, **{task.short: None for task in elsewhere}}

    async def _ask(self, container: str, servers: _Servers) -> _Servers:
        """Ask servers to clear a container, and skip each one that was replaced: a new server has nothing to clear.

        Args:
            container: The name of the resource container.
            servers: The servers to ask.

        Returns:
            The servers that did not answer.
        """
        topology, now = self._supervisor.topology, self._servers()
        asking = {
            asyncio.ensure_future(
                self._prober.ask(task.address, settings.RUN_CLEANUP_TIMEOUT_SECONDS, clear=container)
            ): task.short
            for task in (topology.tasks if topology else ())
            if task.short in servers and task.short in now and servers[task.short] == now[task.short]
        }
        if not asking:
            return {}
        done, late = await asyncio.wait(asking, timeout=2 * settings.RUN_CLEANUP_TIMEOUT_SECONDS)
        for question in late:
            question.cancel()
        answered = {question for question in done if question.result().verdict is ProbeOutcome.PROBE_OK}
        return {short: servers[short] for question, short in asking.items() if question not in answered}
