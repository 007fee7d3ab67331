"""Graceful shutdown of a cluster on this host: requested by `tfcluster down`, or because the lease has expired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tfcluster import settings
from tfcluster.agent.lease import Lease
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.secret_store import SecretStore
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.status import ClusterStatus
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import DownReply, DownRequest


class Shutdown:
    """Stops the cluster's runs and tasks and removes its journal.

    Args:
        folder: The cluster's state directory.
        secrets: The secret values of the cluster's tasks.
        supervisor: The tasks.
        runs: The runs.
        abandon: Cancels the execution of a plan, if one is in progress.
        status: Returns the status of the cluster.
        quitting: Set when everything has stopped.
    """

    def __init__(
        self,
        folder: StateDir,
        secrets: SecretStore,
        supervisor: Supervisor,
        runs: RunManager,
        abandon: Callable[[], Awaitable[None]],
        status: Callable[[], ClusterStatus],
        quitting: asyncio.Event,
    ) -> None:
        self._folder = folder
        self._secrets = secrets
        self._supervisor = supervisor
        self._runs = runs
        self._abandon = abandon
        self._status = status
        self._quitting = quitting
        self._stopping: asyncio.Task[None] | None = None
        self._grace = 0.0  # seconds between SIGTERM and SIGKILL

    @property
    def under_way(self) -> bool:
        """Return whether the cluster is going down or is down."""
        return self._stopping is not None

    def refuse(self) -> None:
        """Reject a request if the cluster is going down.

        Raises:
            ClusterError: The cluster is going down.
        """
        if self.under_way:
            cluster = self._supervisor.require_cluster().cluster
            raise ClusterError(f"cluster {cluster!r} is going down", hint="Try again when `tfcluster down` is done.")

    async def down(self, request: DownRequest) -> Response[ClusterStatus, DownReply]:
        """Stop all runs and tasks; see `DownRequest`."""
        self._supervisor.require_cluster()
        grace = request.grace
        if self._stopping is None:
            stopping = self._begin(grace)
        else:
            stopping = self._stopping
            self._grace = min(self._grace, grace)
            self._supervisor.shorten_grace(grace)
        async for _ in self._supervisor.changed.until(stopping):
            yield self._status()
        stopping.result()
        yield Reply(DownReply())

    def end_if_forgotten(self, lease: Lease) -> None:
        """Shut the cluster down if its lease has expired.

        Args:
            lease: The lease; its duration is in the topology.
        """
        topology = self._supervisor.topology
        if topology is None or self.under_way or not lease.is_over(topology.lease):
            return
        detail = f"no command for {topology.lease:g} s, the cluster's lease: its tasks on this host are being stopped"
        self._supervisor.history.record("lease-expired", detail=detail)
        self._begin(settings.STOP_GRACE_SECONDS)

    def _begin(self, grace: float) -> asyncio.Task[None]:
        self._grace = grace
        self._stopping = asyncio.ensure_future(self._stop_all())
        return self._stopping

    async def _stop_all(self) -> None:
        try:
            await self._abandon()
            await self._runs.cancel_all()
            await self._supervisor.stop(self._grace)
        except BaseException:
            self._stopping = None  # the remaining tasks stay supervised, and the next `down` tries again
            raise
        with suppress(OSError):  # `Agent.stop` tries again
            self._secrets.forget()
        # Without the journal every command sees the cluster as down, while the agent still stops its helper processes.
        try:
            self._folder.journal.remove()
        except OSError as error:
            # Keep the agent running: the journal would make the next agent start every task again.
            self._stopping = None
            cluster = self._supervisor.require_cluster().cluster
            raise ClusterError(
                f"all tasks of {cluster!r} are stopped, but {self._folder.path} cannot be cleared: {error.strerror}",
                hint="Make it writable and type `tfcluster down` again.",
            ) from error
        self._supervisor.history.record("down")
        self._quitting.set()
