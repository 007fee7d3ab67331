"""Cleanup after runs: their resource containers on the TensorFlow servers, and the folders of old ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Collection

from tfcluster import settings
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.subprocesses import fork_child
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.states import ENDED_RUN_STATES
from tfcluster.os.daemonize import detach
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.runs.stored_output import free_all, stored_bytes

# Maps a task's short name to the process of its server. A server on another host maps to None: its process is unknown.
_Servers = dict[str, ProcessHandle | None]

_logger = logging.getLogger(__name__)


def remove_old_runs(store: RunStore, active: Collection[str], output_limit: int) -> None:
    """Remove the folders of old runs, and output of the others, in a child process: there may be many large files.

    A failure only goes into the agent's log: the next run tries it again.

    `active` has the ids of the runs that have not ended. `output_limit` is the bytes that the stored output of all runs
    may take.
    """
    agent_pid = os.getpid()

    def remove(link: socket.socket) -> None:
        detach("tfcluster: removal of old runs", keep=[link.fileno()], parent=agent_pid)
        store.remove_old(active)
        free_old_output(store, active, output_limit)

    try:
        if store.has_old(active) or sum(_output_sizes(store).values()) > output_limit:
            child = fork_child(remove, lambda status: child.close_pipe())
    except OSError as error:
        _logger.error("%s: cannot remove old runs: %s", store.path, error.strerror)


def _output_sizes(store: RunStore) -> dict[str, int]:
    """Return the size of the stored output of each run."""
    return {folder.name: stored_bytes(folder) for folder in store.path.iterdir()} if store.path.exists() else {}


def free_old_output(store: RunStore, active: Collection[str], limit: int) -> None:
    """Free the stored output of the oldest runs that have ended, until that of all runs is within a limit."""
    sizes = _output_sizes(store)
    excess = sum(sizes.values()) - limit
    for record in store.read_all():
        if excess > 0 and record.run not in active and record.state in ENDED_RUN_STATES:
            with contextlib.suppress(OSError):
                free_all(store.folder(record.run))
            excess -= sizes.get(record.run, 0) - stored_bytes(store.folder(record.run))


class ContainerCleaner:
    """Clears the resource containers of runs, with their variables, on all servers.

    The supervisor's event log records each server that never answered.
    """

    def __init__(self, supervisor: TaskSupervisor, prober: ProbeClient) -> None:
        self._supervisor = supervisor
        self._prober = prober

    async def clear(self, container: str) -> None:
        """Clear a container, whose name is its run's id, on every task; retry if a task does not answer in time."""
        remaining = self._servers()
        for delay in (0.0, *settings.RUN_CLEANUP_BACKOFF_SECONDS):
            await asyncio.sleep(delay)
            remaining = await self._send_requests(container, remaining)
            if not remaining:
                return
        for short in remaining:
            detail = f"the server still holds the variables of {container}"
            self._supervisor.history.record("cleanup-failed", task=short, detail=detail)

    def _servers(self) -> _Servers:
        """Return the servers that exist now."""
        tasks = self._supervisor.tasks.values()
        local: _Servers = {task.spec.short: task.process for task in tasks if task.process}
        topology = self._supervisor.topology
        remote = [task for task in topology.tasks if task.host != self._supervisor.host] if topology else []
        return {**local, **{task.short: None for task in remote}}

    async def _send_requests(self, container: str, servers: _Servers) -> _Servers:
        """Ask servers to clear a container; return those that did not answer.

        A server that was replaced is skipped: a new one has nothing to clear.
        """
        topology, present = self._supervisor.topology, self._servers()
        timeout = settings.RUN_CLEANUP_TIMEOUT_SECONDS
        requests = {
            asyncio.ensure_future(
                self._prober.probe(task.address, settings.RUN_CLEANUP_TIMEOUT_SECONDS, clear=container)
            ): task.short
            for task in (topology.tasks if topology else ())
            if task.short in servers and task.short in present and servers[task.short] == present[task.short]
        }
        if not requests:
            return {}
        completed, late = await asyncio.wait(requests, timeout=2 * timeout)
        for request in late:
            request.cancel()
        successful = {request for request in completed if request.result().outcome is ProbeOutcome.PROBE_OK}
        return {short: servers[short] for request, short in requests.items() if request not in successful}
