"""RPC handlers of a cluster and its tasks: preflight of this host, execution of a plan, status, devices, restart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.preflight import HostCheckInput, check_host_in_child, prepare_host, reserve_ports
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.timeout import wait_for
from tfcluster.core.forwarding import Certificate
from tfcluster.core.plan import affected_runs, lost_run
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES
from tfcluster.core.status import ClusterStatus
from tfcluster.core.text import pluralize
from tfcluster.core.topology import ClusterTopology, matching_tasks
from tfcluster.core.usage import HostUsage
from tfcluster.errors import ClusterError
from tfcluster.processes.probes import connection_failures
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.cluster import (
    ApplyReply,
    ApplyRequest,
    DevicesReply,
    DevicesRequest,
    Observation,
    ObserveRequest,
    Preparation,
    PrepareRequest,
    ReachReply,
    ReachRequest,
    RestartRequest,
    StatusRequest,
    TopologyRequest,
    UsageRequest,
    WatchRequest,
)


class ClusterHandlers:
    """Handles the requests about the cluster and its tasks.

    The command makes the plan of a change. The agent executes it if the state of its host is still the one that the
    plan was made from, and rejects it otherwise (compare-and-swap).
    """

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._host = context.host
        self._supervisor = context.supervisor
        self._ports = context.ports
        self._in_progress: asyncio.Task[None] | None = None

    async def topology(self, request: TopologyRequest) -> Response[NoReturn, ClusterTopology]:
        """Return the topology of the cluster that is up."""
        yield Reply(self._supervisor.require_cluster())

    async def observe(self, request: ObserveRequest) -> Response[NoReturn, Observation]:
        """Return the observed state of the cluster."""
        await self.wait_idle()
        self._context.reject_if_going_down()
        yield Reply(Observation(self._observed_or_none(), self._context.forwarder.certificate))

    async def prepare(self, request: PrepareRequest) -> Response[Preparation, NoReturn]:
        """Run the preflight checks for a topology, and allocate ports and GPUs; see `PrepareRequest`.

        If the cluster is up, new ports are reserved only when the plan is executed. A cluster without servers comes
        up for a run: the fork server imports TensorFlow meanwhile, as the health prober imports gRPC.
        """
        await self.wait_idle()
        if self._supervisor.topology is None:
            with suppress(ClusterError):  # the checks find out why there can be no private network
                self._context.move_to(request.topology.network)
        if request.topology.on(self._host):
            self._context.prober.ensure_started()
        if not request.topology.has_servers and request.topology.head().host == self._host:
            with suppress(OSError):  # the run will say that it cannot be forked
                self._context.runs.fork_server.ensure_started()
        failed_checks = await check_host_in_child(self._context.make_check_input(request.topology))
        current, ports_before = self._supervisor.topology, self._ports.reserved
        inputs = self._context.make_check_input(request.topology)
        preparation = prepare_host(inputs, self._supervisor.load_tensorflow, failed_checks)
        self._release_foreign(inputs)
        if current is not None:
            self._ports.release_except({*ports_before, *current.ports_on(self._host)})
        with self._listen() if request.listens else nullcontext():
            yield preparation
            await asyncio.get_running_loop().create_future()

    @contextmanager
    def _listen(self) -> Iterator[None]:
        """Listen temporarily on the reserved ports of servers that do not run yet, and of the forwarder."""
        topology = self._supervisor.topology
        free_ports = self._ports.reserved - (topology.ports_on(self._host) if topology else set())
        with self._ports.listen_temporarily(free_ports), self._context.forwarder.listen_temporarily():
            yield

    async def reach(self, request: ReachRequest) -> Response[NoReturn, ReachReply]:
        """Connect to all addresses concurrently; see `ReachRequest`."""
        connect = partial(connection_failures, list(request.addresses), request.timeout)
        timeout = request.timeout + settings.CONNECTIVITY_MARGIN_SECONDS
        failures = await run_in_child("tfcluster: connection check", connect, timeout)
        if failures is None:
            raise ClusterError(
                "the process that checks connections to the other hosts died or hangs", hint="Try again."
            )
        yield Reply(ReachReply(failures))

    async def apply(self, request: ApplyRequest) -> Response[ClusterStatus, ApplyReply]:
        """Execute a plan if the state of this host is the one from which it was made; see `ApplyRequest`."""
        await self.wait_idle()
        self._context.reject_if_going_down()
        desired, observed = request.topology, self._observed_or_none()
        if (observed.revision if observed else None) != request.base_revision:
            yield Reply(ApplyReply(_conflict(desired, observed)))
            return
        self._ports.stop_listening()
        if observed is None:
            await self._start(desired, request.certificate)
            yield Reply(ApplyReply(None))
            return
        lost_runs = affected_runs(request.terminating, observed.runs)
        if request.accepted_loss is not None and (more := sorted(set(lost_runs) - set(request.accepted_loss))):
            yield Reply(ApplyReply(f"the plan would also cancel {', '.join(more)}"))
            return
        self._reserve_ports(desired)
        self._context.forwarder.configure(desired, request.certificate)
        task = self._in_progress = asyncio.ensure_future(self._carry_out(desired, request.summary))
        async for _ in self._supervisor.changed.stream_until(task, self._context.status_interval):
            yield self._context.status()
        if task.cancelled():
            self._context.reject_if_going_down()
        task.result()
        await self._context.forwarder.wait_until_listening()
        yield Reply(ApplyReply(None))

    async def devices(self, request: DevicesRequest) -> Response[NoReturn, DevicesReply]:
        """Ask all tasks for their devices."""
        self._supervisor.require_cluster()
        devices, silent = await self._supervisor.list_devices(settings.DEVICE_LIST_SECONDS)
        yield Reply(DevicesReply(tuple(devices), tuple(silent)))

    async def restart(self, request: RestartRequest) -> Response[NoReturn, Done]:
        """Restart tasks; see `RestartRequest`."""
        self._context.reject_if_going_down()
        topology = self._supervisor.require_cluster()
        names = {task.short: task.name for task in topology.on(self._supervisor.host)}
        self._supervisor.restart([names[short] for short in matching_tasks(request.tasks, list(names))], request.grace)
        yield Reply(Done())

    async def status(self, request: StatusRequest) -> Response[NoReturn, ClusterStatus]:
        """Return the status of the cluster."""
        yield Reply(self._context.recent_status())

    async def usage(self, request: UsageRequest) -> Response[NoReturn, HostUsage]:
        """Return what the agent and the tasks have used, and how busy the host is."""
        yield Reply(await self._context.usage.read())

    async def watch(self, request: WatchRequest) -> Response[ClusterStatus, Done]:
        """Send the status at each change; see `WatchRequest`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout
        while True:
            with suppress(asyncio.TimeoutError):  # while a plan is executed, tasks that it stops look failed
                await wait_for(self.wait_idle(), deadline - loop.time())
            counts = self._supervisor.changed.count, self._context.runs.changed.count
            yield self._context.status()
            try:
                await asyncio.sleep(min(self._context.status_interval, max(0.0, deadline - loop.time())))
                await wait_for(self._wait_for_change(*counts), deadline - loop.time())
            except asyncio.TimeoutError:
                yield Reply(Done())
                return

    async def _wait_for_change(self, of_tasks: int, of_runs: int) -> None:
        """Wait until there are more changes of tasks, or of runs, than these counts say."""
        waits = (
            self._supervisor.changed.wait_for_change(of_tasks),
            self._context.runs.changed.wait_for_change(of_runs),
        )
        pending = {asyncio.ensure_future(wait) for wait in waits}
        try:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pending:
                each.cancel()

    def resume(self) -> None:
        """Continue a change that an earlier agent began; if that fails, the event log says why."""
        topology = self._supervisor.next
        if topology is not None:
            self._in_progress = asyncio.ensure_future(self._resume(topology))

    async def _resume(self, topology: ClusterTopology) -> None:
        supervisor = self._supervisor
        # The state machines must first handle the exits of processes that ended while there was no agent.
        while any(task.process is None and task.machine.state in HAS_PROCESS for task in supervisor.tasks.values()):
            await supervisor.changed.wait_for_change(supervisor.changed.count)
        try:
            self._reserve_ports(topology)
            await self._carry_out(topology, "completed the change that an earlier agent began")
        except ClusterError as error:
            supervisor.next = None
            supervisor.history.record("update-failed", detail=error.message)

    async def wait_idle(self) -> None:
        """Wait until no plan is being executed."""
        while self._in_progress is not None and not self._in_progress.done():
            await asyncio.wait({self._in_progress})

    async def abandon(self) -> None:
        """Cancel the plan that is being executed, because the cluster goes down."""
        if self._in_progress is not None:
            self._in_progress.cancel()
            await asyncio.wait({self._in_progress})  # also returns if it has failed or finished already

    def _reserve_ports(self, topology: ClusterTopology) -> None:
        """Reserve the ports of a topology on this host; see `reserve_ports`."""
        inputs = self._context.make_check_input(topology)
        try:
            reserve_ports(inputs)
        finally:
            self._release_foreign(inputs)

    def _release_foreign(self, inputs: HostCheckInput) -> None:
        """Release the ports that were reserved for a check in a network in which the agent has no tasks yet."""
        if inputs.ports is not self._ports:
            inputs.ports.release_except(())

    async def _start(self, topology: ClusterTopology, certificate: Certificate | None) -> None:
        """Start the cluster, unless the command disconnects before the other hosts can reach it here.

        If it cannot be started, this raises ClusterError and nothing runs.
        """
        task = self._in_progress = asyncio.ensure_future(self._start_cluster(topology, certificate))
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if task.cancelled():
            raise ClusterError(f"cluster {topology.cluster!r} is going down", hint="Try again.")
        task.result()

    async def _start_cluster(self, topology: ClusterTopology, certificate: Certificate | None) -> None:
        self._context.move_to(topology.network)
        await self._context.forwarder.start(topology, certificate)
        self._reserve_ports(topology)  # the preflight may have run on an agent that has died since
        tasks = topology.on(self._host)
        self._supervisor.history.record("up", detail=f"{pluralize(len(tasks), 'task')}, agent {os.getpid()}")
        self._ports.release_except(topology.ports_on(self._host))
        self._supervisor.apply(topology, [task.name for task in tasks] if topology.has_servers else [])

    async def _carry_out(self, topology: ClusterTopology, summary: str) -> None:
        """Stop the tasks that the topology does not keep, then adopt the topology and start its tasks.

        Until all these tasks have stopped, the journal contains both topologies, so that the next agent continues if
        this one dies. The event log records `summary`.
        """
        try:
            if self._unkept_tasks(topology):
                self._supervisor.next = topology
                self._supervisor.write_journal()
            # Check again after each stop: a server that died and restarted meanwhile knows only the old addresses.
            while stopping := self._unkept_tasks(topology):
                await self._supervisor.stop(settings.STOP_GRACE_SECONDS, stopping)
            self._context.move_to(topology.network)
            self._supervisor.history.record("updated", detail=summary)
            self._supervisor.apply(topology, self._stopped_tasks(topology))
        except BaseException:
            self._supervisor.next = None  # the next agent must not continue a change that failed or was cancelled
            with suppress(ClusterError):
                self._supervisor.write_journal()
            raise
        finally:
            self._ports.release_except(self._supervisor.require_cluster().ports_on(self._host))

    def _unkept_tasks(self, topology: ClusterTopology) -> list[str]:
        """Return the tasks that must stop before the agent can adopt the topology."""
        names = {task.name for task in topology.on(self._host)} & topology.kept.keys()
        return [
            name
            for name, task in self._supervisor.tasks.items()
            if task.machine.state not in TERMINAL_STATES
            and (name not in names or (task.process is not None and task.generation != topology.kept[name]))
        ]

    def _stopped_tasks(self, topology: ClusterTopology) -> list[str]:
        """Return the tasks of the topology that have to be started on this host."""
        tasks = self._supervisor.tasks
        names = [task.name for task in topology.on(self._host)]
        return [name for name in names if name not in tasks or tasks[name].machine.state in TERMINAL_STATES]

    def _observed_or_none(self) -> ObservedState | None:
        topology, runs = self._supervisor.topology, self._context.runs
        if topology is None:
            return None
        return ObservedState(
            topology=topology,
            tasks=self._context.status().tasks,
            generations=self._supervisor.generations(),
            runs={
                lost_run(run, is_script=runs.runs[run].record.options.traits.is_script): tasks
                for run, tasks in runs.tasks_in_use([task.name for task in topology.tasks]).items()
            },
        )


def _conflict(desired: ClusterTopology, observed: ObservedState | None) -> str:
    if observed is None:
        return f"cluster {desired.cluster!r} is not running"
    return f"it is now generation {observed.topology.generation}, from {observed.topology.spec}"
