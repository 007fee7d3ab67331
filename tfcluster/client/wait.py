"""Wait until the tasks of a cluster are ready, watching all its hosts in parallel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import read_logs
from tfcluster.client.parallel import StreamContext, merge_streams
from tfcluster.client.reconnect import Reconnector, RetryPolicy
from tfcluster.client.rpc import AgentClient, ResponseStream
from tfcluster.client.snapshot import unreachable
from tfcluster.core.states import TERMINAL_STATES, TaskState
from tfcluster.core.status import ClusterStatus, HostUnavailable, TaskStatus, aggregate_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.cluster import WatchRequest


def watch_until_ready(
    cluster: Cluster,
    topology: ClusterTopology,
    timeout: float,
    only: Collection[str] | None = None,
    among: Collection[str] | None = None,
) -> Iterator[ClusterStatus]:
    """Watch a cluster until the tasks are ready.

    Args:
        cluster: The cluster.
        topology: The cluster's topology.
        timeout: The maximum number of seconds to wait.
        only: Short names of the tasks to wait for; None for all tasks.
        among: Short names of the tasks that every status has to contain, if there are more of them than in `only`.

    Yields:
        The cluster's status at each change.

    Raises:
        ClusterError: A task failed permanently, or the wait timed out; the message names the tasks, the reasons and
            the end of their logs. Or a host could not be reached when the wait timed out.
    """
    tasks: list[TaskStatus] = []
    with contextlib.closing(_watch(cluster, topology, timeout, among or only)) as statuses:
        for status in statuses:
            yield status
            tasks = [task for task in status.tasks if only is None or task.short in only]
            if all(task.state is TaskState.READY for task in tasks):
                return
            if any(task.state in TERMINAL_STATES for task in tasks):
                raise _not_ready(cluster, tasks, "")
    raise _not_ready(cluster, tasks, f" within {timeout:g} s")


def _watch(
    cluster: Cluster, topology: ClusterTopology, timeout: float, among: Collection[str] | None
) -> Generator[ClusterStatus, None, None]:
    """Watch a cluster for `timeout` seconds.

    Yields:
        The cluster's status at each change, as soon as the hosts of all tasks in `among` have reported theirs.
    """
    deadline = time.monotonic() + timeout
    streams = {host: partial(_watch_host, cluster.connect(host), deadline) for host in cluster.hosts}
    needed = {task.host for task in topology.tasks if among is None or task.short in among}
    statuses: dict[str, ClusterStatus | HostUnavailable] = {}
    errors: dict[str, ClusterError] = {}
    with contextlib.closing(merge_streams(streams)) as items:
        for host, status in items:
            statuses[host] = status if isinstance(status, ClusterStatus) else "unreachable"
            if isinstance(status, ClusterError) and host in needed:
                if status.exit_code is not ExitCode.UNREACHABLE:
                    raise status
                errors[host] = status
            if statuses.keys() >= needed:
                yield aggregate_status(topology, {host: statuses[host] for host in streams if host in statuses})
    if errors:
        raise unreachable(cluster.name, errors)


def _watch_host(client: AgentClient, deadline: float, context: StreamContext) -> Iterator[ClusterStatus | None]:
    """Watch one host until the deadline, reconnecting if its agent dies or the connection breaks.

    Yields:
        The host's status at each change; None when a remote host can no longer be reached.
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
                elif client.elsewhere:
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
