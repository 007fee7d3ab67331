"""The status of a cluster on all its hosts: a snapshot, also with what is used, or as metrics.

Also: wait until tasks are ready, list their devices, and ask what a server or the processes of a run do now.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster, recorded_spec, unregister
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.rpc.parallel import StreamContext, call_hosts, host_timeout, map_hosts, merge_streams, unreachable
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.wait_diagnosis import follow_late_tasks
from tfcluster.core.devices import Device
from tfcluster.core.states import TERMINAL_STATES, ClusterState, TaskState
from tfcluster.core.status import ClusterStatus, HostStatus, HostUnavailable, TaskStatus, aggregate_status
from tfcluster.core.topology import ClusterTopology, latest_topology, matching_tasks
from tfcluster.core.usage import HostUsage, with_usage
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.cluster import (
    DevicesReply,
    DevicesRequest,
    StatusRequest,
    TopologyRequest,
    UsageRequest,
    WatchRequest,
)
from tfcluster.protocol.api.logs import LogLine
from tfcluster.protocol.api.processes import RunStacksReply, RunStacksRequest, TaskThreadsReply, TaskThreadsRequest
from tfcluster.transport.errors import UnrecordedProcessesError, not_running

_Stream = Callable[[StreamContext], Iterator[ClusterStatus | LogLine | None]]


@dataclass(frozen=True)
class ClusterSnapshot:
    """The state of a cluster at one moment."""

    topology: ClusterTopology  # the latest one that any of the hosts has
    status: ClusterStatus
    errors: dict[str, ClusterError]  # by host, why it could not report its status
    statuses: dict[str, ClusterStatus]  # of each of the other hosts, by host


class NoStatusError(ClusterError):
    """No host of a cluster could report its status.

    The errors are keyed by host.
    """

    def __init__(self, cluster: Cluster, errors: Mapping[str, ClusterError]) -> None:
        error = unreachable(cluster, errors)
        is_down = all(isinstance(each, UnrecordedProcessesError) for each in errors.values())
        code = ExitCode.NOT_RUNNING if is_down else error.exit_code
        super().__init__(error.message, hint=error.hint, exit_code=code)
        self.errors = errors


def take_snapshot(cluster: Cluster, timeout: float | None = None) -> ClusterSnapshot:
    """Take a snapshot: query all hosts of a cluster in parallel.

    A host that does not answer is waited for `timeout` seconds. If the cluster is running on none of its hosts, it is
    removed from the registry, and an error is raised; a NoStatusError says that none of them can report its status.
    """

    cluster.check_job()

    def query(host: str) -> tuple[ClusterTopology, ClusterStatus]:
        client = cluster.connect(host)
        waiting = client.stream(StatusRequest(), timeout=timeout)
        topology = client.stream(TopologyRequest(), timeout=timeout)  # without waiting for the status
        status = waiting.result()  # first, as its timeout is shorter
        return topology.result(), status

    reports, failures = map_hosts(cluster.hosts, query, host_timeout(cluster, timeout), find_lost=lambda reply: None)
    errors = {
        host: error
        for host, error in failures.items()
        if error.exit_code is not ExitCode.NOT_RUNNING or isinstance(error, UnrecordedProcessesError)
    }
    if not reports and not errors:
        if cluster.job is not None or cluster.pods is not None:
            raise _nothing_runs(cluster)
        unregister(cluster.name)
        raise failures.get(LOCAL_HOST) or not_running(cluster.name)
    if not reports:
        if cluster.job is not None:
            from tfcluster.providers import slurm

            if slurm.look_up(cluster.job) is None:  # this asks Slurm, which is worth it if none of its nodes answers
                raise slurm.ended_error(cluster.job)
        raise NoStatusError(cluster, errors)
    topology = latest_topology([topology for topology, _ in reports.values()])
    # Some of the topology's hosts may no longer be in the registry, because they are certainly down.
    hosts = dict.fromkeys([*(host.name for host in topology.hosts), *cluster.hosts])
    statuses: dict[str, ClusterStatus | HostUnavailable] = {
        host: reports[host][1] if host in reports else "unreachable" if host in errors else "down" for host in hosts
    }
    status = aggregate_status(topology, statuses)
    if cluster.job is not None and status.job is None:  # the agent that asks for the end of the job has no answer yet
        status = replace(status, job=cluster.job.status(time.time()))
    return ClusterSnapshot(topology, status, errors, {host: status for host, (_, status) in reports.items()})


def pending_status(cluster: Cluster) -> ClusterStatus | None:
    """Return the status of a cluster whose job of Slurm was in the queue when `up` last looked; None for others."""
    job = cluster.job
    if job is None or job.nodes:
        return None
    spec = recorded_spec(cluster.name) or ""
    return ClusterStatus(cluster.name, ClusterState.PENDING, spec, (), (), (), job=job.status(time.time()))


def _nothing_runs(cluster: Cluster) -> ClusterError:
    """Return the error that a cluster is down although its job of Slurm or its pods are there."""
    if cluster.job is not None:
        where, end = f", and Slurm job {cluster.job.id} holds its nodes", "ends the job"
    else:
        where, end = " in its pods", "deletes the pods"
    return ClusterError(
        f"cluster {cluster.name!r} is not running{where}",
        hint=f"`tfcluster up` starts it there; `tfcluster down` {end}.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def take_snapshot_with_usage(
    cluster: Cluster, timeout: float | None = None
) -> tuple[ClusterSnapshot, dict[str, HostUsage]]:
    """Take a snapshot of a cluster, with the load of its hosts and the traffic of its tasks, by host.

    See `take_snapshot` for the timeout and for errors. A host that has reported no usage is left out of it.
    """
    snapshot = take_snapshot(cluster, timeout)

    def query(host: str) -> HostUsage:
        return cluster.connect(host).call(UsageRequest(), timeout=timeout)

    limit = settings.HOST_TIMEOUT_SECONDS if timeout is None else timeout
    usages, _ = map_hosts(snapshot.statuses, query, limit)
    return replace(snapshot, status=with_usage(snapshot.status, usages)), usages


def collect_metrics(cluster: Cluster, timeout: float | None = None) -> tuple[str, ClusterError | None]:
    """Collect the metrics of a cluster, on all its hosts.

    Return OpenMetrics text, and the error if the cluster is not running, or none of its hosts can be reached; then the
    text says no more than that.
    """
    from tfcluster.core.metrics import render_metrics

    names = tuple(cluster.hosts)
    try:
        snapshot, usages = take_snapshot_with_usage(cluster, timeout)
    except NoStatusError as error:
        return _without_status(cluster.name, ClusterState.DEGRADED, names, "unreachable"), error
    except ClusterError as error:
        if error.exit_code is not ExitCode.NOT_RUNNING:
            raise
        return _without_status(cluster.name, ClusterState.STOPPED, names, "down"), error
    return render_metrics(snapshot.status, usages), None


def _without_status(name: str, state: ClusterState, hosts: tuple[str, ...], host_state: str) -> str:
    from tfcluster.core.metrics import render_metrics

    statuses = tuple(HostStatus(host, host_state, None, None) for host in hosts)
    return render_metrics(ClusterStatus(name, state, "", statuses, (), ()), {})


def watch_until_ready(
    cluster: Cluster,
    topology: ClusterTopology,
    timeout: float,
    only: Collection[str] | None = None,
    among: Collection[str] | None = None,
    show_line: Callable[[LogLine], None] = lambda line: None,
) -> Iterator[ClusterStatus]:
    """Watch a cluster until the tasks are ready; yield its status at each change.

    Args:
        only: Short names of the tasks to wait for; None for all tasks.
        among: Short names of the tasks that every status has to contain, if there are more of them than in `only`.
        show_line: Called with what the tasks print that are not ready after some seconds.

    Raises:
        ClusterError: A task failed permanently, or the wait timed out; the message names the tasks, the reasons and
            the end of their logs. Or a host could not be reached when the wait timed out.
    """
    tasks: list[TaskStatus] = []
    with contextlib.closing(_watch(cluster, topology, timeout, among or only, lambda: tasks)) as items:
        for status in items:
            if isinstance(status, LogLine):
                if any(task.short == status.task and task.state is not TaskState.READY for task in tasks):
                    show_line(status)
                continue
            yield status
            tasks = [task for task in status.tasks if only is None or task.short in only]
            if all(task.state is TaskState.READY for task in tasks):
                return
            if any(task.state in TERMINAL_STATES for task in tasks):
                raise _not_ready(cluster, tasks, "")
    raise _not_ready(cluster, tasks, f" within {timeout:g} s")


def wait_until_ready(cluster: Cluster, names: Sequence[str], timeout: float | None) -> ClusterStatus:
    """Wait until tasks of a cluster that is up are ready.

    The names are those of `matching_tasks`; without names, it is all tasks. Return the cluster's status in which the
    tasks are ready; if one has failed or the time is over, an error is raised.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    snapshot = take_snapshot(cluster, timeout)
    tasks = matching_tasks(names, [task.short for task in snapshot.topology.tasks])
    status = snapshot.status
    remaining = threading.TIMEOUT_MAX if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        for latest in watch_until_ready(cluster, snapshot.topology, remaining, tasks):
            status = latest
    except ClusterError as error:
        if deadline is None or time.monotonic() < deadline or error.exit_code is not ExitCode.UNHEALTHY:
            raise
        raise ClusterError(error.message, hint=error.hint, exit_code=ExitCode.TIMED_OUT) from None
    return replace(status, tasks=tuple(task for task in status.tasks if task.short in tasks))


def _watch(
    cluster: Cluster,
    topology: ClusterTopology,
    timeout: float,
    among: Collection[str] | None,
    watched: Callable[[], Sequence[TaskStatus]],
) -> Generator[ClusterStatus | LogLine, None, None]:
    """Watch a cluster for `timeout` seconds.

    Args:
        among: Short names of the tasks that every status has to contain; None for all tasks.
        watched: Returns the latest status of each task whose log is followed while it is late.

    Yields:
        The cluster's status at each change, as soon as the hosts of all tasks in `among` have reported theirs; and the
        lines of logs.
    """
    deadline = time.monotonic() + timeout

    def late_on(host: str) -> list[str]:
        return [task.short for task in watched() if task.host == host and task.state is not TaskState.READY]

    def watch_logs(host: str, context: StreamContext) -> Iterator[LogLine]:
        return follow_late_tasks(cluster, host, partial(late_on, host), context)

    streams: dict[str, _Stream] = {
        host: partial(_watch_host, cluster.connect(host), deadline) for host in cluster.hosts
    }
    logs: dict[str, _Stream] = {f"logs on {host}": partial(watch_logs, host) for host in cluster.hosts}
    needed = {task.host for task in topology.tasks if among is None or task.short in among}
    statuses: dict[str, ClusterStatus | HostUnavailable] = {}
    errors: dict[str, ClusterError] = {}
    with contextlib.closing(merge_streams(streams, background=logs)) as items:
        for host, status in items:
            if isinstance(status, LogLine):
                yield status
                continue
            statuses[host] = status if isinstance(status, ClusterStatus) else "unreachable"
            if isinstance(status, ClusterError) and host in needed:
                if status.exit_code is not ExitCode.UNREACHABLE:
                    raise status
                errors[host] = status
            if statuses.keys() >= needed:
                yield aggregate_status(topology, {host: statuses[host] for host in cluster.hosts if host in statuses})
    if errors:
        raise unreachable(cluster, errors)


def _watch_host(client: AgentClient, deadline: float, context: StreamContext) -> Iterator[ClusterStatus | None]:
    """Watch one host until the deadline, reconnecting if its agent dies or the connection breaks.

    Yield the host's status at each change; None when a remote host can no longer be reached.
    """
    policy = RetryPolicy(settings.WAIT_AGENTS, timeout=max(0.0, deadline - time.monotonic()))
    reconnector: Reconnector[ClusterStatus, Done] = Reconnector(client, context, policy)

    def watch() -> ResponseStream[ClusterStatus, Done]:
        return client.stream(WatchRequest(max(0.0, deadline - time.monotonic())))

    try:
        # The watch does not end when the cluster is ready, so close the connection.
        with contextlib.closing(reconnector.events(watch)) as statuses:
            for status in statuses:
                if status is not None:
                    yield status
                elif client.transport.is_remote:
                    yield None
    except ClusterError as error:
        if error.exit_code is not ExitCode.NOT_RUNNING:
            raise
        raise ClusterError(
            f"cluster {client.transport.cluster!r} went down meanwhile", hint="`tfcluster up` starts it again."
        ) from None


def _not_ready(cluster: Cluster, tasks: Sequence[TaskStatus], when: str) -> ClusterError:
    """Build the error that lists the tasks that are not ready, with the reasons and the last lines of their logs."""
    waiting = [task for task in tasks if task.state is not TaskState.READY]
    failed = [task for task in waiting if task.state in TERMINAL_STATES] or waiting
    reasons = [_reason(cluster, task) for task in failed]
    count = f"{len(tasks) - len(waiting)} of {len(tasks)} tasks are ready{when}"
    return ClusterError(
        f"cluster {cluster.name!r} is not ready: {count}\n" + "\n".join(reasons),
        hint="`tfcluster up` tries the failed tasks again, `tfcluster down` stops the rest, "
        "`tfcluster logs TASK` shows a whole log.",
        exit_code=ExitCode.UNHEALTHY,
    )


def _reason(cluster: Cluster, task: TaskStatus) -> str:
    from tfcluster.client.logs import read_logs  # only a wait that fails needs it

    text = f"{task.short} at {task.address} on {task.host} is {task.state.value}"
    if task.last_exit is not None:
        text += f" ({task.last_exit})"
        if task.last_exit.detail:
            text += f": {task.last_exit.detail}"
    lines: Iterable[str]
    if task.state in TERMINAL_STATES:
        lines = task.last_exit.log if task.last_exit is not None else ()
    else:  # the task is slow to start: its log may say what it is waiting for
        lines = (each["line"] for each in read_logs(cluster, [task.short], lines=settings.FAILED_TASK_LOG_LINES))
    return text + "".join(f"\n  {line}" for line in lines)


def list_devices(cluster: Cluster, timeout: float | None) -> tuple[list[tuple[str, Device]], ClusterError | None]:
    """List the devices of all tasks.

    With the devices and their hosts comes an error that names the tasks and hosts whose devices are missing; None if
    all answered.
    """

    def query(host: str) -> DevicesReply:
        return cluster.connect(host).call(DevicesRequest(), timeout=timeout)

    replies, errors = map_hosts(cluster.hosts, query, host_timeout(cluster, timeout), find_lost=lambda reply: None)
    errors = {host: error for host, error in errors.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not replies:
        raise next(iter([*errors.values(), not_running(cluster.name)]))
    devices = [(host, device) for host, reply in replies.items() for device in reply.devices]
    silent = [problem for reply in replies.values() for problem in reply.silent]
    if errors:
        error = unreachable(cluster, errors)
        return devices, ClusterError("\n".join([error.message, *silent]), hint=error.hint, exit_code=error.exit_code)
    if silent:
        return devices, ClusterError(
            "\n".join(silent),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` the latest output of one.",
            exit_code=ExitCode.UNHEALTHY,
        )
    return devices, None


def read_task_threads(cluster: Cluster, name: str) -> TaskThreadsReply:
    """Return what the server of a task (`worker:1` or `/job:worker/task:1`) does, in a cluster that is up."""
    from tfcluster.client.exec import find_exec_target  # no other command of this module needs it

    target = find_exec_target(cluster, name)
    return cluster.connect(target.host).call(TaskThreadsRequest(target.task or name))


def read_run_stacks(cluster: Cluster, run: str) -> tuple[list[RunStacksReply], ClusterError | None]:
    """Return the Python stacks of a run's processes, on all hosts that have some.

    `run` is an id, or a unique prefix of one. With the replies comes an error that names the hosts that cannot be
    reached.
    """
    replies, errors = call_hosts(cluster, cluster.hosts, RunStacksRequest(run), host_timeout(cluster))
    failures = [error for error in errors.values() if error.exit_code is not ExitCode.USAGE]
    if not replies:
        raise next(iter([*failures, *errors.values()]))
    away = {host: error for host, error in errors.items() if error.exit_code is ExitCode.UNREACHABLE}
    return list(replies.values()), unreachable(cluster, away) if away else None
