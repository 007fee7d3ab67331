"""Requests about runs: follow, list, cancel and wait for them, across dead agents and lost connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster, unknown_cluster
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.rpc.parallel import (
    StreamContext,
    call_hosts,
    host_timeout,
    map_hosts,
    merge_streams,
    unreachable,
)
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.interrupts import GracefulInterrupt, InterruptibleContext
from tfcluster.client.runs.locate import locate_run
from tfcluster.client.runs.lost_state import lost_run
from tfcluster.core.runs import find_run
from tfcluster.core.text import summarize_list
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.protocol.api import Done
from tfcluster.protocol.api import runs as api
from tfcluster.protocol.serialization import to_json

Event = dict[str, Any]
RunResponse = ResponseStream[api.EventRecord, Done]


def attach(cluster: Cluster, run: str) -> Generator[Event, None, None]:
    """Follow a run from its first event to its result; the run continues whether or not its events are read.

    Args:
        run: The run's id, its name, or a unique prefix of the id.
    """
    cluster, run = locate_run(cluster, run, start=True)
    client = cluster.connect_head()
    if not client.transport.has_state():
        raise unknown_cluster(cluster.name)
    response = client.stream(api.AttachRequest(run, events=0, output=0, cancel_on_disconnect=False), start=True)
    return follow(cluster, response, run, None, events=0, cancel_on_disconnect=False)


def follow(
    cluster: Cluster,
    response: RunResponse,
    run: str,
    interrupt: GracefulInterrupt | None,
    *,
    events: int,
    cancel_on_disconnect: bool,
    again: api.RunRequest | None = None,
) -> Generator[Event, None, None]:
    """Follow a run up to its result, re-attaching after the last event if the agent or the connection is lost.

    Args:
        response: The response to read first.
        interrupt: The reaction to signals, which must not wait for the run; None for the default.
        events: The number of events received so far, not counting output.
        cancel_on_disconnect: Whether the run is cancelled if the command disconnects.
        again: As in `AttachRequest`.
    """
    output = 0
    client = cluster.connect_head()
    first = [response]

    def attach_again() -> RunResponse:
        if first:
            return first.pop()
        request = api.AttachRequest(run, events, output, cancel_on_disconnect, again=again)
        return client.stream(request, start=True, interrupt=interrupt)

    host = client.transport.host
    context = StreamContext(host) if interrupt is None else InterruptibleContext(host, interrupt)
    with keep_leases_alive(cluster, {cluster.head}):
        for record in read_records(client, context, attach_again):
            if record["event"] == "waiting":  # `attach`, which has no interrupt, replays what is over perhaps
                record = _complete_wait(cluster, record, with_logs=interrupt is not None)
            run = record.get("run", run)
            if record["event"] == "output":
                output += record.get("missing") or len(encode(record))
            else:
                events += 1
            if record["event"] != "interrupt" if interrupt is None else interrupt.on_event(record):
                yield record


def read_records(client: AgentClient, context: StreamContext, attach: Callable[[], RunResponse]) -> Iterator[Event]:
    """Yield the events of a run, which continues while its agent is dead or its host cannot be reached.

    `attach` follows it after the last event that has arrived. If the host has come back without its state, so that
    nobody there knows the run any more, this raises a ClusterError.
    """
    reconnector: Reconnector[api.EventRecord, Done] = Reconnector(client, context, RetryPolicy(settings.STREAM_AGENTS))
    has_result = is_known = False
    try:
        for event in reconnector.events(attach, reap_agent=True):
            is_known = True
            if event is not None and event.record["event"] == api.ATTACHED:
                continue
            if event is not None:
                has_result = event.record["event"] == "result"
                yield event.record
            elif has_result:  # the agent died before it completed the response: another would send the result again
                return
    except ClusterError as error:
        if is_known and error.exit_code is ExitCode.USAGE:
            raise lost_run(client.transport.host) from None
        raise


def _complete_wait(cluster: Cluster, record: Event, *, with_logs: bool) -> Event:
    """Return the event of a script that waits with what the other hosts say of its tasks, and with the tasks' logs."""
    from tfcluster.client.runs.wait_diagnosis import add_logs, ask_hosts  # few runs wait

    if len(cluster.hosts) > 1:
        record = ask_hosts(cluster, record)
    return add_logs(cluster, record) if with_logs else record


@contextlib.contextmanager
def keep_leases_alive(cluster: Cluster, leaders: Collection[str]) -> Iterator[None]:
    """Renew the leases of a cluster's hosts, except those of `leaders`, while the context is open.

    The agents of the leaders know that a command follows a run.
    """
    stopped = threading.Event()
    others = [host for host in cluster.hosts if host not in leaders]
    if others:
        threading.Thread(target=_renew_leases, args=(cluster, others, stopped), daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


def _renew_leases(cluster: Cluster, hosts: Sequence[str], stopped: threading.Event) -> None:
    from tfcluster.protocol.api.cluster import StatusRequest, TopologyRequest  # a run on a single host does not need it

    topology: ClusterTopology | None = None
    while topology is None:
        if stopped.wait(settings.LEASE_START_SECONDS):
            return
        with contextlib.suppress(ClusterError):
            topology = cluster.connect_head().call(TopologyRequest())
    lease = topology.lease
    while lease is not None and not stopped.wait(lease / settings.LEASE_RENEWALS):
        call_hosts(cluster, hosts, StatusRequest(), settings.LEASE_TIMEOUT_SECONDS)


def list_runs(cluster: Cluster, lines: int | None) -> tuple[list[dict[str, Any]], ClusterError | None]:
    """List a cluster's runs on all hosts; most are on that of the head task, which leads them.

    The cluster may be down. `lines` limits the list to the latest runs.

    Returns:
        The runs, the oldest first, each as {run, program, parameters, state, seconds, started, result, error}; and an
        error that names the hosts whose runs are missing, or None if all answered.
    """

    def query(host: str) -> tuple[api.RunSummary, ...] | None:
        client = cluster.connect(host)
        # If the cluster is down, an agent is started to read the records of its host.
        return client.call(api.RunsRequest(lines), start=True).runs if client.transport.has_state() else None

    replies, errors = map_hosts(cluster.hosts, query, host_timeout(cluster))
    answers = [runs for runs in replies.values() if runs is not None]
    if errors and not answers:
        raise unreachable(cluster, errors)
    if not answers:
        raise unknown_cluster(cluster.name)
    runs = sorted((run for answer in answers for run in answer), key=lambda run: run.started)
    latest = runs if lines is None else runs[len(runs) - min(lines, len(runs)) :]
    return [to_json(run) for run in latest], unreachable(cluster, errors) if errors else None


def latest_run(cluster: Cluster) -> str:
    """Return the id of a cluster's latest run; a host that may have it, but cannot be reached, is an error."""
    runs, problem = list_runs(cluster, 1)
    if problem is not None:
        raise problem
    if not runs:
        raise usage_error(f"{cluster.name} has no runs", "`tfcluster run` starts one.")
    return str(runs[0]["run"])


def find_record(cluster: Cluster, run: str) -> dict[str, Any]:
    """Return the record of a run, as `list_runs` has it; the cluster may be down.

    `run` is an id, a name, or a unique prefix of an id. A host that may have the record, but cannot be reached, is an
    error.
    """
    runs, problem = list_runs(cluster, None)
    records = {record["run"]: record for record in runs}
    try:
        return records[find_run(run, records)]
    except ClusterError:
        if problem is not None:
            raise problem from None
        raise


def cancel_run(cluster: Cluster, run: str) -> dict[str, Any]:
    """Cancel a run, and return its id, as {run}; a run that has ended already is not changed.

    `run` is an id, a name, or a unique prefix of an id. The cluster is up.
    """
    leader, run_id = locate_run(cluster, run, start=False)
    return {"run": leader.connect_head().call(api.CancelRequest(run_id)).run}


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
    request = api.AttachRequest(run, events=0, output=0, cancel_on_disconnect=False, only_result=True)
    for record in read_records(client, context, lambda: client.stream(request, start=True)):
        if record["event"] == "result":
            yield record


class OutputLines:
    """Makes an event for each line of output from events for parts of it."""

    def __init__(self) -> None:
        self._rest: dict[tuple[str, str], bytes] = {}

    def convert(self, event: Event) -> Iterator[Event]:
        """Yield an event as it is, or of one of output those of the lines that it completes.

        The result, and a line about output that is missing, are preceded by lines that have no end. A line that is too
        long comes in pieces.
        """
        is_missing = "missing" in event  # its data is a line that says so
        if event["event"] == "output" and not is_missing:
            yield from self._complete((event["stream"], event.get("task", "")), encode(event))
            return
        if event["event"] == "result" or is_missing:
            for source in list(self._rest):
                yield from self._complete(source, b"\n")
        if is_missing:
            event = {**event, "line": event["data"].rstrip("\n")}
            del event["data"]
        yield event

    def _complete(self, source: tuple[str, str], data: bytes) -> Iterator[Event]:
        stream, task = source
        limit = settings.RUN_OUTPUT_LINE_MAX_BYTES
        *lines, rest = (self._rest.pop(source, b"") + data).split(b"\n")
        pieces = [line[start : start + limit] for line in lines for start in range(0, max(1, len(line)), limit)]
        while len(rest) > limit:
            pieces.append(rest[:limit])
            rest = rest[limit:]
        if rest:
            self._rest[source] = rest
        member = {"task": task} if task else {}
        for piece in pieces:
            yield {"event": "output", **member, "stream": stream, "line": piece.decode(errors="replace")}


def encode(event: Event) -> bytes:
    """Return the bytes of an event of output, as the script wrote them."""
    data: str = event["data"]
    return data.encode(errors="surrogateescape")
