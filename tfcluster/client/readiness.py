"""Wait until the tasks of a cluster are ready, with what late ones print and why others are not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.rpc.parallel import StreamContext, merge_streams, unreachable
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.wait_diagnosis import follow_late_tasks
from tfcluster.client.status import take_snapshot
from tfcluster.core.states import TERMINAL_STATES, HostState, TaskState
from tfcluster.core.status import ClusterStatus, HostUnavailable, TaskStatus, aggregate_status
from tfcluster.core.topology import ClusterTopology, matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.cluster import WatchRequest
from tfcluster.protocol.api.logs import LogLine

_Stream = Callable[[StreamContext], Iterator[ClusterStatus | LogLine | None]]


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
            statuses[host] = status if isinstance(status, ClusterStatus) else HostState.UNREACHABLE
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
        # The watch does not end when the cluster is ready.
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
            f"cluster {client.transport.cluster!r} went down", hint="`tfcluster up` starts it again."
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
    if task.probe_error is not None:
        text += f"; it does not answer ({task.probe_error})"
    lines: Iterable[str]
    if task.state in TERMINAL_STATES:
        lines = task.last_exit.log if task.last_exit is not None else ()
    else:  # the task is slow to start: its log may say what it is waiting for
        lines = (each["line"] for each in read_logs(cluster, [task.short], lines=settings.FAILED_TASK_LOG_LINES))
    return text + "".join(f"\n  {line}" for line in lines)
