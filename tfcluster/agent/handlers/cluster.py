"""RPC handlers of a cluster and its tasks: preflight of this host, execution of a plan, status, devices, restart."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.event_loop import wait_for_first
from tfcluster.agent.preflight import HostCheckInput, answering, check_host_in_child, prepare_host, reach, reserve_ports
from tfcluster.agent.state.journal import JournalError
from tfcluster.agent.subprocesses import survivors_error
from tfcluster.core.forwarding import Certificate
from tfcluster.core.plan import affected_runs, lost_run
from tfcluster.core.programs import TOLERANT
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES, ClusterState, HostState
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.core.topology import ClusterTopology, check_address, check_numbers, matching_tasks
from tfcluster.core.usage import HostUsage
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import ProcessHandle, send_signal
from tfcluster.process_mark import describe_process, mark_of, marked_processes
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.cluster import (
    ApplyReply,
    ApplyRequest,
    DevicesReply,
    DevicesRequest,
    DownReply,
    DownRequest,
    Observation,
    ObserveRequest,
    Preparation,
    PrepareRequest,
    ReachReply,
    ReachRequest,
    RestartRequest,
    StatusReply,
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
        check_numbers(request.topology)
        await self.wait_idle()
        if self._supervisor.topology is None:
            with suppress(ClusterError):  # the checks find out why there can be no private network
                self._context.move_to(request.topology.network)
        with suppress(OSError):  # the task or run that needs one will say that it cannot be forked
            if request.topology.on(self._host):
                self._context.prober.ensure_started()
            is_for_a_run = request.topology.warm and not request.topology.has_servers
            if is_for_a_run and request.topology.head().host == self._host:
                self._context.runs.fork_server.ensure_started()
        gpus = await self._context.find_gpus(request.topology)
        failed_checks = await check_host_in_child(self._context.make_check_input(request.topology, gpus))
        current, ports_before = self._supervisor.topology, self._ports.reserved
        inputs = self._context.make_check_input(request.topology, gpus)
        preparation = prepare_host(inputs, self._supervisor.load_tensorflow, failed_checks)
        self._release_foreign(inputs)
        if current is not None:
            self._ports.release_except({*ports_before, *current.ports_on(self._host)})
        with self._answering(request.topology) if request.listens else nullcontext():
            yield preparation
            await asyncio.get_running_loop().create_future()

    @contextmanager
    def _answering(self, desired: ClusterTopology) -> Iterator[None]:
        """Answer connections on the reserved ports of servers that do not run yet, and of the forwarder."""
        topology = self._supervisor.topology
        free_ports = self._ports.reserved - (topology.ports_on(self._host) if topology else set())
        with (
            self._ports.listen_temporarily(free_ports) as listeners,
            self._context.forwarder.listen_temporarily() as forwarder,
            answering([*listeners, *forwarder], desired),
        ):
            yield

    async def reach(self, request: ReachRequest) -> Response[NoReturn, ReachReply]:
        """Connect to all addresses concurrently; see `ReachRequest`."""
        for address in (*request.addresses, *request.answered):
            check_address(address)
        if not 0 < request.timeout <= settings.RPC_SLOW_TIMEOUT_SECONDS:
            raise ClusterError(f"no connection can take {request.timeout:g} s")
        yield Reply(await reach(request))

    async def apply(self, request: ApplyRequest) -> Response[ClusterStatus, ApplyReply]:
        """Execute a plan if the state of this host is the one from which it was made; see `ApplyRequest`."""
        check_numbers(request.topology)
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

    async def status(self, request: StatusRequest) -> Response[NoReturn, StatusReply]:
        """Return the status of the cluster."""
        await self._context.host_end.refresh()
        yield Reply(StatusReply(self._context.recent_status(), self._supervisor.require_cluster().generation))

    async def usage(self, request: UsageRequest) -> Response[NoReturn, HostUsage]:
        """Return what the agent and the tasks have used, and how busy the host is."""
        yield Reply(await self._context.usage.read())

    async def watch(self, request: WatchRequest) -> Response[ClusterStatus, Done]:
        """Send the status at each change; see `WatchRequest`."""
        deadline = asyncio.get_running_loop().time() + request.timeout
        while True:
            with suppress(TimeoutError):  # while a plan is executed, tasks that it stops look failed
                async with asyncio.timeout_at(deadline):
                    await self.wait_idle()
            counts = [(each, each.count) for each in (self._supervisor.changed, self._context.runs.changed)]
            yield self._context.status()
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(self._context.status_interval)
                    await wait_for_first(*(changed.wait_for_change(count) for changed, count in counts))
            except TimeoutError:
                yield Reply(Done())
                return

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
            with suppress(ClusterError):
                supervisor.write_journal()  # or a later agent would try again
            supervisor.history.record("update-failed", detail=error.message)

    @property
    def is_changing(self) -> bool:
        """Whether a plan is being executed."""
        return self._in_progress is not None and not self._in_progress.done()

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
        self._ports.release_except(topology.ports_on(self._host))
        start = [task.name for task in tasks] if topology.has_servers else []
        self._supervisor.apply(topology, start, "up", f"{pluralize(len(tasks), 'task')}, agent {os.getpid()}")

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
            was_warm = self._supervisor.require_cluster().warm
            self._supervisor.apply(topology, self._stopped_tasks(topology), "updated", summary)
            if topology.warm != was_warm:
                self._context.runs.fork_server.end()
                self._supervisor.changed.notify()  # the next one starts now if it imports TensorFlow
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
                lost_run(run, is_certain=runs.runs[run].record.options.program in TOLERANT): tasks
                for run, tasks in runs.tasks_in_use([task.name for task in topology.tasks]).items()
            },
        )


def _conflict(desired: ClusterTopology, observed: ObservedState | None) -> str:
    if observed is None:
        return f"cluster {desired.cluster!r} is not running"
    return f"it is now generation {observed.topology.generation}, from {observed.topology.spec}"


class Shutdown:
    """Stops the cluster's runs and tasks and removes its journal."""

    def __init__(self, context: AgentContext, cluster: ClusterHandlers) -> None:
        self._context = context
        self._supervisor = context.supervisor
        self._cluster = cluster
        self._stopping: asyncio.Task[None] | None = None
        self._grace = 0.0  # seconds between SIGTERM and SIGKILL
        self._unrecorded: list[str] = []  # the processes that were stopped although the journal did not record them

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
        async for _ in self._supervisor.changed.stream_until(stopping, self._context.status_interval):
            yield self._context.status()
        stopping.result()
        yield Reply(DownReply(_describe_unrecorded(self._context.cluster, self._unrecorded)))

    def expire_lease(self) -> None:
        """Shut the cluster down if its lease has expired."""
        topology, lease = self._supervisor.topology, self._context.lease
        if topology is None or self._context.is_going_down or not lease.has_expired(topology.lease):
            return
        if any(run.is_active and run.record.is_part for run in self._context.runs.runs.values()):
            return  # the lease of the coordinator's host ends the group
        detail = f"no command for {topology.lease:g} s, the cluster's lease: its tasks on this host are being stopped"
        self._supervisor.history.record("lease-expired", detail=detail)
        self._begin(settings.STOP_GRACE_SECONDS)

    def _begin(self, grace: float) -> asyncio.Task[None]:
        self._grace = grace
        self._context.is_going_down = True
        self._stopping = asyncio.ensure_future(self._stop_all())
        return self._stopping

    async def _stop_all(self) -> None:
        try:
            await self._cluster.abandon()
            await self._context.runs.cancel_all()
            try:
                await self._supervisor.stop(self._grace)
            finally:  # what SIGKILL does not end is an error, and keeps nothing else from being stopped
                self._unrecorded = await self._end_unrecorded()
            await self._context.notices.flush(settings.STOP_GRACE_SECONDS)
        except BaseException:
            self._reset()  # the remaining tasks stay supervised, and the next `down` tries again
            raise
        self._context.forwarder.stop()
        with suppress(OSError):  # `Agent.stop` tries again
            self._context.secrets.delete()
        # Without the journal every command sees the cluster as down, while the agent still stops its helper processes.
        try:
            self._context.state_dir.journal.remove()
        except OSError as error:
            # Keep the agent running: the journal would make the next agent start every task again.
            self._reset()
            cluster = self._supervisor.require_cluster().cluster
            raise ClusterError(
                f"all tasks of {cluster!r} are stopped, but {self._context.state_dir.path} cannot be cleared: "
                f"{error.strerror}",
                hint="Make it writable and type `tfcluster down` again.",
            ) from error
        self._supervisor.history.record("down")
        self._context.quitting.set()

    async def _end_unrecorded(self) -> list[str]:
        """End the processes that the journal does not record, such as servers whose journal was lost earlier."""
        context = self._context
        private = context.network.private
        helpers = [context.forwarder.process, None if private is None else private.holder]  # `Agent.stop` ends them
        tasks = [task.process for task in self._supervisor.tasks.values()]
        unrecorded = await lasting_processes(mark_of(context.state_dir.path), known=[*helpers, *tasks])
        return await end_all(lambda: [each for each in unrecorded if each.is_alive()], context.cluster, self._grace)

    def _reset(self) -> None:
        self._stopping = None
        self._context.is_going_down = False


class UnreadableCluster:
    """A cluster whose journal is damaged or missing: it can only stop the cluster's processes.

    It handles all requests that need the journal.

    `is_down` tells whether all processes have stopped and the journal is removed.
    """

    def __init__(self, context: AgentContext, problem: ClusterError, *, is_missing: bool = False) -> None:
        self.is_down = False
        self._context = context
        self._problem = problem
        self._is_missing = is_missing
        self._stopping: asyncio.Task[list[str]] | None = None

    async def reject(self) -> Response[Any, Any]:
        """Reject a request: always raises ClusterError."""
        running = summarize_list([describe_process(each, self._context.cluster) for each in self._processes()])
        raise ClusterError(
            f"{self._problem.message}; still running: {running or 'nothing of the cluster'}", hint=self._problem.hint
        )
        yield  # noqa: V201 - it makes this function an async generator

    async def down(self, request: DownRequest) -> Response[ClusterStatus, DownReply]:
        """Stop every process of the cluster, and remove the journal.

        This continues if the command that requested it dies. The reply has a warning. Raises JournalError if a newer
        version of tfcluster has written the journal.
        """
        if isinstance(self._problem, JournalError) and self._problem.is_newer:
            raise self._problem
        if self._stopping is None:
            self._context.is_killing_unrecorded = True  # also if the command disconnects
            self._stopping = asyncio.ensure_future(self._stop(request.grace))
        # Yield at once: the command's timeout applies until the first message only.
        yield self._status()
        await asyncio.wait({self._stopping})
        stopped = self._stopping.result()
        if self._is_missing:
            yield Reply(DownReply(_describe_unrecorded(self._context.cluster, stopped)))
        else:
            yield Reply(DownReply(f"{self._problem.message}; {_describe_stopped(self._context.cluster, stopped)}"))

    async def _stop(self, grace: float) -> list[str]:
        """Stop the processes and remove the journal; return the descriptions of the processes."""
        context, stopped = self._context, list[str]()
        try:
            stopped = await end_all(self._processes, context.cluster, grace)
            context.state_dir.journal.remove()
            self.is_down = True
        except OSError as error:
            raise ClusterError(
                f"{_describe_stopped(context.cluster, stopped)}, but {context.state_dir.path} cannot be cleared: "
                f"{error.strerror}",
                hint="Make it writable and type `tfcluster down` again.",
            ) from error
        finally:
            context.is_killing_unrecorded = False
            context.quitting.set()
        return stopped

    def _processes(self) -> list[ProcessHandle]:
        """Return the processes that have the cluster's mark, and those that the journal names, which may have none.

        The mark may be one of another version, for example, or the processes were started before there were marks.
        """
        state_dir = self._context.state_dir
        processes = {*marked_processes(mark_of(state_dir.path)), *state_dir.journal.processes()}
        return sorted(processes, key=lambda process: process.pid)

    def _status(self) -> ClusterStatus:
        """Return the status of the cluster, without tasks: nothing is known of them."""
        hosts = (HostStatus(self._context.host, HostState.UP, None, None),)
        return ClusterStatus(self._context.cluster, ClusterState.DEGRADED, "", hosts, (), ())


def _describe_stopped(cluster: str, processes: Sequence[str], more: str = "") -> str:
    count = pluralize(len(processes), "process", "processes")
    return f"stopped {count} of {cluster}{more}{': ' if processes else ''}{summarize_list(processes)}"


def _describe_unrecorded(cluster: str, processes: Sequence[str]) -> str | None:
    return _describe_stopped(cluster, processes, " that no journal recorded") if processes else None


async def lasting_processes(mark: str, known: Collection[ProcessHandle | None] = ()) -> list[ProcessHandle]:
    """Return the processes that have a mark, except those that are about to exit, as an earlier agent's helpers.

    `known` are processes to leave out.
    """
    processes = [process for process in marked_processes(mark) if process not in known]
    deadline = time.monotonic() + settings.UNRECORDED_EXIT_SECONDS
    while processes and time.monotonic() < deadline:
        await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
        processes = [process for process in processes if process.is_alive()]
    return processes


async def end_all(find: Callable[[], Sequence[ProcessHandle]], cluster: str, grace: float) -> list[str]:
    """End processes until none is found: one may have forked another one in the meantime.

    `find` returns the processes that run now; `grace` is the seconds between SIGTERM and SIGKILL. Returns the
    descriptions of the processes. Raises ClusterError if SIGKILL has not ended all of them, when no other is left.
    """
    ended: list[str] = []
    survivors: dict[ProcessHandle, str] = {}
    while processes := [process for process in find() if process not in survivors]:
        names = {process: describe_process(process, cluster) for process in processes}
        survivors |= {process: names[process] for process in await end_processes(processes, grace)}
        ended += names.values()
    if survivors:
        raise survivors_error([*survivors.values()], cluster)
    return ended


async def end_processes(processes: Collection[ProcessHandle], grace: float) -> list[ProcessHandle]:
    """Terminate processes and wait until they have exited; return those that still run some time after SIGKILL.

    Sends SIGTERM to all of them, and SIGKILL to those that still run after `grace` seconds.
    """
    opened = {pidfd: process for process in processes if (pidfd := process.open()) is not None}
    try:
        running = list(opened)
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, settings.KILL_SECONDS)):
            deadline = time.monotonic() + seconds
            for pidfd in running:
                send_signal(pidfd, number)
                send_signal(pidfd, signal.SIGCONT)  # a stopped process does not handle SIGTERM
            while (running := _not_ended(running)) and time.monotonic() < deadline:
                await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
        return [opened[pidfd] for pidfd in running]
    finally:
        for pidfd in opened:
            os.close(pidfd)


def _not_ended(pidfds: Collection[int]) -> list[int]:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    ended = {pidfd for pidfd, _ in poll.poll(0)}
    return [pidfd for pidfd in pidfds if pidfd not in ended]
