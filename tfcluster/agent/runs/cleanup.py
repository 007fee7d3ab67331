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
        """Clear a container, whose name is its run's id, on every task; retry if a task does not answer in time.

        A server that was replaced meanwhile is skipped: a new one has nothing to clear.
        """
        remaining, timeout = self._servers(), settings.RUN_CLEANUP_TIMEOUT_SECONDS
        for delay in (0.0, *settings.RUN_CLEANUP_BACKOFF_SECONDS):
            await asyncio.sleep(delay)
            present = self._servers().items()
            same = [server for server in remaining.items() if server in present]
            requests = [self._prober.probe(address, timeout, clear=container) for (_, address), _ in same]
            results = zip(same, await asyncio.gather(*requests), strict=True)
            remaining = dict(server for server, result in results if result.outcome is not ProbeOutcome.PROBE_OK)
            if not remaining:
                return
        for short, _ in remaining:
            detail = f"the server still holds the variables of {container}"
            self._supervisor.history.record("cleanup-failed", task=short, detail=detail)

    def _servers(self) -> dict[tuple[str, str], ProcessHandle | None]:
        """Return the processes of the servers by their tasks' short names and addresses; None for another host's."""
        topology, tasks = self._supervisor.topology, self._supervisor.tasks.values()
        remote = [task for task in topology.tasks if task.host != self._supervisor.host] if topology else []
        local = {(task.spec.short, task.spec.address): task.process for task in tasks if task.process}
        return {**local, **{(task.short, task.address): None for task in remote}}
