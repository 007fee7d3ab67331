"""Launch a group of processes, or the trials of a sweep: follow its run, and have the other hosts take part in it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import secrets
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.down import take_down
from tfcluster.client.resolve import find_cluster
from tfcluster.client.rpc.agent_client import AgentDisconnectedError
from tfcluster.client.rpc.parallel import combine_errors, map_hosts, warn
from tfcluster.client.runs.lost_state import naming_empty_head
from tfcluster.client.runs.requests import Event, keep_leases_alive
from tfcluster.client.runs.submission import RunSubmission
from tfcluster.client.up import PlanConflictError, apply, plan_up
from tfcluster.core.runs import Sweep
from tfcluster.core.script_source import find_change
from tfcluster.core.text import summarize_list
from tfcluster.core.topology import ClusterTopology
from tfcluster.core.trials import select_group
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.unix_socket import NameLock
from tfcluster.paths import LOCAL_HOST, running_clusters, state_folder
from tfcluster.process_mark import lock_name
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.runs import JoinRequest
from tfcluster.transport.errors import HostUnreachableError


def make_group(
    submission: RunSubmission, jobs: tuple[str, ...], *, max_restarts: int = 0, sweep: Sweep | None = None
) -> RunSubmission:
    """Return the submission of a group with a new secret; see `RunOptions` for the other arguments."""
    options = replace(submission.options, jobs=jobs, max_restarts=max_restarts, sweep=sweep)
    return replace(submission, options=options, secret=secrets.token_hex(32))


def launch(submission: RunSubmission, cluster: Cluster) -> Generator[Event, None, None]:
    """Submit the run of a group and follow it up to its result; see `RunSubmission.events`."""
    # A script from a pipe can be read only once. The TF_CONFIG of a trial has no cluster.
    is_member = submission.options.sweep is None
    if submission.upload is None and is_member and (note := _describe_own_config(submission.options.parameters)):
        warn(note)
    with naming_empty_head(cluster):
        _send_code(submission, cluster)
    run, has_begun, lost = "", False, _LostHosts(submission, cluster)
    with contextlib.closing(submission.events(cluster)) as events:
        try:
            for event in events:
                run = event.get("run", run)
                if event["event"] != "coordinator":
                    yield event
                elif has_begun:
                    lost.rejoin(run, event)
                else:
                    has_begun = True
                    _join(submission, cluster, run, event)
        finally:
            lost.ended.set()


def _describe_own_config(parameters: Mapping[str, Any]) -> str:
    """Return a note if a script replaces TF_CONFIG, by which a member knows its place; else an empty string."""
    start = parameters["path"] or os.path.join(parameters["cwd"], *parameters["module"].split("."))
    for path in (start, f"{start}.py", os.path.join(start, "__main__.py")):
        with contextlib.suppress(OSError):
            if os.path.isfile(path) and (line := find_change(Path(path).read_bytes(), "TF_CONFIG")):
                place = f"{os.path.relpath(path, parameters['cwd'])}:{line}"
                test = '`if "TF_CONFIG" not in os.environ:`'
                return f"note: {place} changes TF_CONFIG, from which a member knows its place: put it below {test}"
    return ""


def _send_code(submission: RunSubmission, cluster: Cluster) -> None:
    """Send the code to the hosts of the group before it starts: from then on, time is limited."""
    if len(cluster.hosts) == 1:
        return
    topology = cluster.connect_head().call(TopologyRequest())
    members = select_group(topology, submission.options)
    hosts = dict.fromkeys(member.host for member in members)
    if not hosts.keys() - {cluster.head}:
        return
    if not cluster.connect_head().transport.is_remote:
        hosts.pop(cluster.head, None)
    tree, reports = submission.code_tree, dict[str, list[str]]()

    def send(host: str) -> None:
        tree.send(
            cluster.connect(host), lambda _, what: reports.setdefault(what, []).append(host), submission.show_sending
        )

    _, errors = map_hosts(hosts, send, None)
    for what, names in reports.items():  # from this thread, as `warn` requires
        warn(f"sending to {summarize_list(sorted(names))}: {what}")
    if errors:
        raise combine_errors(cluster, errors, "nothing was started")


def _join(submission: RunSubmission, cluster: Cluster, run: str, event: Event) -> None:
    """Have the other hosts of the group connect to its coordinator."""
    request = _join_request(submission, run, event)

    def join(host: str) -> None:
        try:
            cluster.connect(host).call(request)
        except AgentDisconnectedError as error:
            hint = "Type the command again when the host is back."
            raise HostUnreachableError(host, f"it was lost before {run} had started", hint) from error

    _, errors = map_hosts(event["hosts"], join, settings.GROUP_START_SECONDS)
    if errors:
        raise combine_errors(cluster, errors, f"{run} was not started")


def _join_request(submission: RunSubmission, run: str, event: Event) -> JoinRequest:
    options = replace(submission.options, upload=None)  # that is on the leading host only
    return JoinRequest(run, options, event["address"], submission.secret, submission.code_tree.location)


class _LostHosts:
    """Has hosts that a group has lost connect again as soon as they can be reached, each in one thread.

    They try until the run has ended: the coordinator ends it when it has waited long enough.
    """

    def __init__(self, submission: RunSubmission, cluster: Cluster) -> None:
        self.ended = threading.Event()
        self._submission = submission
        self._cluster = cluster
        self._lock = threading.Lock()
        self._requests: dict[str, JoinRequest] = {}  # the latest one of each host that is lost

    def rejoin(self, run: str, event: Event) -> None:
        """Have the hosts of an event connect to the coordinator, which may have another address than before."""
        request = _join_request(self._submission, run, event)
        with self._lock:
            for host in event["hosts"]:
                is_new = host not in self._requests
                self._requests[host] = request
                if is_new:
                    threading.Thread(target=self._join, args=[host], daemon=True).start()

    def _join(self, host: str) -> None:
        while not self.ended.wait(settings.GROUP_REJOIN_SECONDS):
            with contextlib.suppress(ClusterError, OSError):
                client = self._cluster.connect(host)
                with self._lock:
                    request = self._requests[host]
                self._submission.code_tree.send(client, lambda host, text: None, lambda host, size, remaining: None)
                client.call(request)
                with self._lock:
                    if self._requests[host] is request:  # else it was lost again since then
                        del self._requests[host]
                        return


@contextlib.contextmanager
def workers_topology(count: int, network: str) -> Iterator[ClusterTopology]:
    """Yield the topology of workers on this machine, with a cluster name that nothing else uses meanwhile."""
    from tfcluster.core.resolve import resolve_spec
    from tfcluster.spec.load import parse_spec

    with contextlib.ExitStack() as stack:
        for number in itertools.count(1):
            name = "launch" if number == 1 else f"launch-{number}"
            if stack.enter_context(_claim(name)) and name not in running_clusters():
                break
        text = f"{{jobs: {{worker: {{tasks: {count}}}}}, network: {network}}}"
        yield resolve_spec(parse_spec(text, "--workers", name), "--workers")


@contextlib.contextmanager
def temporary_cluster(topology: ClusterTopology, source: str) -> Iterator[Cluster]:
    """Bring a cluster up without servers, and take it down at the end; if this command is killed, its lease does.

    `source` is the result of `spec_source` for its spec.
    """
    lease = topology.lease or settings.LAUNCH_REMOTE_LEASE_SECONDS
    if all(host.name == LOCAL_HOST for host in topology.hosts):  # connections break with this command only
        lease = min(topology.lease or math.inf, settings.LAUNCH_LEASE_SECONDS)
    plan = plan_up(replace(topology, has_servers=False, lease=lease), source, dry=False)
    try:
        apply(plan, accept_any_loss=False, show_status=_ignore)
    except PlanConflictError:  # another command has brought the cluster up, or is changing it
        raise
    except BaseException:
        with contextlib.suppress(ClusterError):  # the first error is the one to show
            _take_down(plan.cluster)
        raise
    try:
        with keep_leases_alive(plan.cluster, ()):
            yield plan.cluster
    finally:
        _take_down(plan.cluster)


def _take_down(cluster: Cluster) -> None:
    """Take a cluster down, unless another command has done so."""
    try:
        take_down(cluster, settings.STOP_GRACE_SECONDS, None, _ignore, is_own=True)
    except ClusterError as error:
        if error.exit_code is not ExitCode.NOT_RUNNING:
            raise


def is_up(name: str) -> bool:
    """Return whether a cluster is up: this machine does not know that a lease has ended one on other hosts."""
    if name not in running_clusters():
        return False
    try:
        find_cluster(name).connect_head().call(TopologyRequest())
    except ClusterError as error:
        if error.exit_code is not ExitCode.NOT_RUNNING:
            raise
        return False
    return True


@contextlib.contextmanager
def claim_cluster(name: str) -> Iterator[None]:
    """Keep other launches from a cluster that this command brings up and takes down; raise an error if one has it."""
    with _claim(name) as is_claimed:
        if not is_claimed:
            raise ClusterError(
                f"another `tfcluster launch` has brought cluster {name!r} up, and takes it down at its end",
                hint="Start it with `tfcluster up` to launch on it several times at once.",
            )
        yield


@contextlib.contextmanager
def _claim(name: str) -> Iterator[bool]:
    """Lock the name of a cluster, which the kernel unlocks with the end of this process; yield whether it is locked."""
    lock = NameLock.acquire(lock_name("launch", state_folder(name)))
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _ignore(status: Any) -> None:
    """Show nothing."""
