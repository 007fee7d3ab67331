"""RPC handlers of `up` and `scale`: run the preflight checks, and apply (reconcile) a plan."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.accounts import other_accounts
from tfcluster.agent.gpus import gpu_ids
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.preflight import examine, hold_ports
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.plan import (
    RESTART,
    START,
    STOP,
    UPDATE,
    PlannedAction,
    affected_runs,
    data_losses,
    is_pure_start,
    plan,
    summary,
)
from tfcluster.core.reconcile import ObservedState, onto
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES
from tfcluster.core.status import ClusterStatus
from tfcluster.core.text import pluralize
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.processes.c_api import TensorFlow
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import (
    Allocation,
    ApplyReply,
    ApplyRequest,
    Listening,
    ListenRequest,
    PrepareReply,
    PrepareRequest,
    TopologyRequest,
)


class ApplyHandler:
    """Handles the requests that change the cluster.

    Attributes:
        awaited: Seconds within which an `up` that has run the preflight on this agent, which has no cluster yet, must
            send the cluster; None if no `up` is pending.
    """

    def __init__(
        self,
        host: str,
        folder: StateDir,
        supervisor: Supervisor,
        ports: PortAllocator,
        runs: RunManager,
        load: Callable[[], TensorFlow],
        status: Callable[[], ClusterStatus],
        refuse_when_going_down: Callable[[], None],
    ) -> None:
        self.awaited: float | None = None
        self._host = host
        self._folder = folder
        self._supervisor = supervisor
        self._ports = ports
        self._runs = runs
        self._load = load
        self._status = status
        self._refuse_when_going_down = refuse_when_going_down
        self._under_way: asyncio.Task[None] | None = None

    async def topology(self, request: TopologyRequest) -> Response[NoReturn, ClusterTopology]:
        """Return the topology of the cluster that is up."""
        if request.settled:
            await self.settled()
        yield Reply(self._supervisor.require_cluster())

    async def prepare(self, request: PrepareRequest) -> Response[NoReturn, PrepareReply]:
        """Run the preflight checks for a topology."""
        await self.settled()
        self._refuse_when_going_down()
        self._supervisor.checks.start()
        wanted, found = request.topology, self._found()
        choices, problems = self._examine(wanted, found)
        version = None
        try:
            version = self._load().version
        except ClusterError as problem:
            problems.append(problem)
        if found is None and not request.dry and not problems:
            self.awaited = (
                settings.AGENT_APPLY_SECONDS if len(wanted.hosts) == 1 else settings.AGENT_APPLY_SECONDS_MULTI_HOST
            )
        yield Reply(PrepareReply(version, choices, found, tuple(problems), other_accounts()))

    def _examine(self, wanted: ClusterTopology, found: ObservedState | None) -> tuple[Allocation, list[ClusterError]]:
        """Run the preflight checks and allocate ports and GPUs.

        If the cluster is up, new ports are not held yet; they are held when the plan is executed.

        Args:
            wanted: The desired topology.
            found: The observed state; None if the cluster is down.

        Returns:
            The allocation and the errors; see `examine`.
        """
        if found is None:
            return examine(wanted, self._host, self._folder.path, self._ports, gpu_ids())
        ours, before = found.topology.ports_on(self._host), self._ports.held
        try:
            return examine(onto(wanted, found), self._host, self._folder.path, self._ports, gpu_ids(), ours)
        finally:
            self._ports.keep_only({*before, *ours})

    async def listen(self, request: ListenRequest) -> Response[Listening, NoReturn]:
        """Listen on the held ports of servers that do not run yet, until the request is cancelled."""
        topology = self._supervisor.topology
        ours = topology.ports_on(self._host) if topology else set()
        with self._ports.listening(self._ports.held - ours) as ports:
            yield Listening(tuple(ports))
            await asyncio.get_running_loop().create_future()

    async def apply(self, request: ApplyRequest) -> Response[ClusterStatus, ApplyReply]:
        """Execute the plan that leads to a topology; see `ApplyRequest`."""
        await self.settled()
        self._refuse_when_going_down()
        complete, found = request.topology, self._found()
        self.awaited = None
        self._ports.quiet()
        if found is None:
            if request.base is not None:
                self._supervisor.require_cluster()  # raises an error if the cluster went down in the meantime
            self._start_anew(complete)
            yield Reply(ApplyReply(complete))
            return
        if request.base is None or request.base != found.topology:
            complete = onto(request.wanted, found)
            if not is_pure_start(self._plan(complete, found), found):
                raise _changed_meanwhile(complete, found)
        losing = {*data_losses(self._plan(complete, found)), *affected_runs(request.ends, found.runs)}
        if request.lost is not None and (more := losing - set(request.lost)):
            raise _more_is_lost(complete, sorted(more))
        hold_ports(complete, self._host, self._ports, found.topology.ports_on(self._host))
        under_way = self._under_way = asyncio.ensure_future(self._carry_out(complete, found))
        async for _ in self._supervisor.changed.until(under_way):
            yield self._status()
        if under_way.cancelled():
            self._refuse_when_going_down()
        under_way.result()
        yield Reply(ApplyReply(complete))

    def resume(self) -> None:
        """Continue a change that an earlier agent began; if that fails, the event log says why."""
        topology = self._supervisor.next
        if topology is not None:
            self._under_way = asyncio.ensure_future(self._resume(topology))

    async def _resume(self, topology: ClusterTopology) -> None:
        supervisor = self._supervisor
        # The state machines must first handle the exits of processes that ended while there was no agent.
        while any(task.process is None and task.machine.state in HAS_PROCESS for task in supervisor.tasks.values()):
            await supervisor.changed.since(supervisor.changed.count)
        found = self._found_now()
        try:
            hold_ports(topology, self._host, self._ports, found.topology.ports_on(self._host))
            await self._carry_out(topology, found)
        except ClusterError as error:
            supervisor.next = None
            supervisor.history.record("not changed", detail=error.message)

    async def settled(self) -> None:
        """Wait until no plan is being executed."""
        while self._under_way is not None and not self._under_way.done():
            await asyncio.wait({self._under_way})

    async def abandon(self) -> None:
        """Cancel the plan that is being executed, because the cluster goes down."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait({self._under_way})  # also returns if it has failed or finished already

    def _start_anew(self, topology: ClusterTopology) -> None:
        hold_ports(topology, self._host, self._ports, ())  # the preflight may have run on an agent that has died since
        tasks = topology.on(self._host)
        self._supervisor.history.record("up", detail=f"{pluralize(len(tasks), 'task')}, agent {os.getpid()}")
        self._ports.keep_only(topology.ports_on(self._host))
        self._supervisor.apply(topology, [task.name for task in tasks])

    async def _carry_out(self, topology: ClusterTopology, found: ObservedState) -> None:
        """Stop the tasks that the topology removes or changes, then adopt the topology and start its new tasks.

        Until all these tasks have stopped, the journal contains both topologies, so that the next agent continues if
        this one dies.

        Args:
            topology: The new topology.
            found: The observed state before the change.
        """
        operations = self._plan(topology, found)
        try:
            if self._to_be_stopped(topology):
                self._supervisor.next = topology
                self._supervisor.write_journal()
            # Check again after each stop: a server that died and restarted meanwhile knows only the old addresses.
            while stopping := self._to_be_stopped(topology):
                await self._supervisor.stop(settings.STOP_GRACE_SECONDS, stopping)
            now = self._found_now()
            start = [
                operation.task.name
                for operation in self._plan(topology, now)
                if operation.kind == START and operation.task is not None
            ]
            updates = dict.fromkeys(operation.cause for operation in operations if operation.kind == UPDATE)
            told = ", ".join([summary(operations), *updates]).removeprefix(", ")
            self._supervisor.history.record("changed", detail=told)
            self._supervisor.apply(topology, start)
        except BaseException:
            self._supervisor.next = None  # the next agent must not continue a change that failed or was cancelled
            with suppress(ClusterError):
                self._supervisor.write_journal()
            raise
        finally:
            self._ports.keep_only(self._supervisor.require_cluster().ports_on(self._host))

    def _to_be_stopped(self, topology: ClusterTopology) -> list[str]:
        """Return the tasks that must stop before the agent can adopt the topology."""
        found = self._found_now()
        at_rest = {status.task for status in found.tasks if status.state in TERMINAL_STATES}
        return [
            operation.task.name
            for operation in self._plan(topology, found)
            if operation.kind in (STOP, RESTART) and operation.task is not None and operation.task.name not in at_rest
        ]

    def _plan(self, topology: ClusterTopology, found: ObservedState) -> tuple[PlannedAction, ...]:
        """Return the planned actions on this host; this agent does not know the state of the other hosts."""
        return tuple(each for each in plan(topology, found) if each.task is None or each.task.host == self._host)

    def _found(self) -> ObservedState | None:
        return None if self._supervisor.topology is None else self._found_now()

    def _found_now(self) -> ObservedState:
        topology = self._supervisor.require_cluster()
        return ObservedState(
            topology=topology,
            tasks=self._status().tasks,
            generations=self._supervisor.generations(),
            runs=self._runs.tasks_in_use([task.name for task in topology.tasks]),
        )


def _changed_meanwhile(wanted: ClusterTopology, found: ObservedState) -> ClusterError:
    return ClusterError(
        f"cluster {wanted.cluster!r} was changed by another command meanwhile (it has {found.topology.spec} now): "
        "nothing was done",
        hint="Run the command again: it plans from what is up now.",
    )


def _more_is_lost(wanted: ClusterTopology, more: list[str]) -> ClusterError:
    return ClusterError(
        f"cluster {wanted.cluster!r} has changed since the plan was made, which would lose {', '.join(more)}: "
        "nothing was done",
        hint="Run the command again: it plans from what is up now.",
    )
