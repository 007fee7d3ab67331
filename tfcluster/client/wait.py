"""Wait, for a script, until runs have ended or tasks are ready."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster, unknown_cluster
from tfcluster.client.rpc.parallel import StreamContext, merge_streams
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.leader import locate_run
from tfcluster.client.runs.runs import Event, keep_leases_alive
from tfcluster.client.status import take_snapshot, watch_until_ready
from tfcluster.core.status import ClusterStatus
from tfcluster.core.text import summarize_list
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.runs import AttachRequest, EventRecord


def wait_for_runs(cluster: Cluster, runs: Sequence[str], timeout: float | None) -> Iterator[tuple[str, Event]]:
    """Wait until runs have ended. Their agents say so: nothing is polled, and no output is read.

    The cluster may be down. Runs are named by ids, names, or unique prefixes of ids. Yield the result event of each run
    as it ends, with the run as it is named in `runs`.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    located = {name: locate_run(cluster, name, start=True) for name in runs}
    streams = {name: partial(_wait_for_run, *place) for name, place in located.items()}
    waiting = dict.fromkeys(streams)
    remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
    leaders = {leader.head for leader, _ in located.values()}
    with keep_leases_alive(cluster, leaders), contextlib.closing(merge_streams(streams, remaining)) as results:
        for name, result in results:
            if isinstance(result, ClusterError):
                raise result
            del waiting[name]
            yield name, result
    if waiting:
        raise ClusterError(
            f"{summarize_list(list(waiting))} did not end within {timeout:g} s",
            hint="The runs continue: `tfcluster runs` lists them, `tfcluster cancel RUN` ends one.",
            exit_code=ExitCode.TIMED_OUT,
        )


def _wait_for_run(cluster: Cluster, run: str, context: StreamContext) -> Iterator[Event]:
    """Wait for the end of one run, through agents that die and connections that break; yield its result event."""
    client = cluster.connect_head()
    if not client.transport.has_state():
        raise unknown_cluster(cluster.name)
    request = AttachRequest(run, events=0, output=0, cancel_on_disconnect=False, only_result=True)
    reconnector: Reconnector[EventRecord, Done] = Reconnector(client, context, RetryPolicy(settings.STREAM_AGENTS))
    for event in reconnector.events(lambda: client.stream(request, start=True), reap_agent=True):
        if event is not None and event.record["event"] == "result":
            yield event.record


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
