"""Launch a group of processes: follow its run, and have the other hosts of the group take part in it."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfcluster import settings
from tfcluster.client.apply import apply
from tfcluster.client.cluster import Cluster
from tfcluster.client.down import take_down
from tfcluster.client.parallel import hints_of, lines_of, map_hosts, partition, warn
from tfcluster.client.run_request import RunRequest
from tfcluster.client.runs import Event
from tfcluster.client.up import plan_up
from tfcluster.core.groups import select_members
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.paths import running_clusters
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.runs import GroupRequest, JoinRequest

if TYPE_CHECKING:
    from tfcluster.client.code import CodeTree


@dataclass(frozen=True)
class Launch:
    """A group of processes to launch.

    Attributes:
        request: The run of the group.
        group: What the run says of the group.
    """

    request: RunRequest
    group: GroupRequest

    def events(self, cluster: Cluster) -> Generator[Event, None, None]:
        """Submit the run and follow it up to its result; see `RunRequest.events`.

        Args:
            cluster: The cluster on whose hosts the group runs.

        Raises:
            ClusterError: A host cannot take part, or as for `RunRequest.events`.
        """
        request = replace(self.request, group=self.group)
        self._send_code(cluster, request)
        run = ""
        with contextlib.closing(request.events(cluster)) as events:
            for event in events:
                run = event.get("run", run)
                if event["event"] == "coordinator":
                    self._join(cluster, run, event, request.code_tree)
                else:
                    yield event

    def _send_code(self, cluster: Cluster, request: RunRequest) -> None:
        """Send the code to the other hosts of the group before it starts: from then on, time is limited.

        Raises:
            ClusterError: A host cannot be reached, or cannot store the code.
        """
        if len(cluster.hosts) == 1:
            return
        topology = cluster.connect_head().call(TopologyRequest(settled=False))
        members = select_members(topology, self.group.jobs)
        others = dict.fromkeys(member.host for member in members if member.host != cluster.head)
        if not others:
            return
        tree, reports = request.code_tree, dict[str, None]()
        outcomes = map_hosts(
            list(others), lambda host: tree.send(cluster.connect(host), lambda text: reports.update({text: None})), None
        )
        for text in reports:  # from this thread, as `warn` requires
            warn(text)
        _reject_failures(cluster, "nothing was started", outcomes)

    def _join(self, cluster: Cluster, run: str, event: Event, tree: CodeTree) -> None:
        """Have the other hosts of the group connect to its coordinator.

        Raises:
            ClusterError: A host cannot take part.
        """

        def join(host: str) -> None:
            cluster.connect(host).call(
                JoinRequest(
                    run=run,
                    program=self.request.program,
                    traits=self.request.traits,
                    parameters=self.request.parameters,
                    timeout=self.request.timeout,
                    coordinator=event["address"],
                    group=self.group,
                    code=tree.location,
                )
            )

        outcomes = map_hosts(event["hosts"], join, settings.GROUP_START_SECONDS)
        _reject_failures(cluster, f"{run} was not started", outcomes)


def _reject_failures(cluster: Cluster, consequence: str, outcomes: Mapping[str, ClusterError | None]) -> None:
    """Raise the errors of hosts, if there are any, as one error."""
    _, errors = partition(outcomes)
    if errors:
        raise ClusterError(
            "\n".join([consequence, *lines_of(cluster, errors)]),
            hint=hints_of(errors),
            exit_code=max(error.exit_code for error in errors.values()),
        )


def make_launch(request: RunRequest, jobs: tuple[str, ...], max_restarts: int) -> Launch:
    """Return the launch of a group with a new secret.

    Args:
        request: The run of a script.
        jobs: As in `GroupRequest`.
        max_restarts: As in `GroupRequest`.
    """
    request = replace(request, traits=replace(request.traits, uses_servers=False))
    return Launch(request, GroupRequest(jobs, max_restarts, secrets.token_hex(32)))


def workers_topology(count: int) -> ClusterTopology:
    """Return the topology of a cluster on this machine with some workers and a name that no running cluster has."""
    from tfcluster.core.resolve import resolve_spec
    from tfcluster.spec.load import parse_spec

    running = running_clusters()
    numbers = itertools.count(2)
    name = "launch"
    while name in running:
        name = f"launch-{next(numbers)}"
    return resolve_spec(parse_spec(f"jobs: {{worker: {{tasks: {count}}}}}", "--workers", name), "--workers")


@contextlib.contextmanager
def temporary_cluster(topology: ClusterTopology, source: str) -> Iterator[Cluster]:
    """Bring a cluster up without servers, and take it down at the end, whatever happens.

    Args:
        topology: The topology.
        source: The result of `spec_source` for its spec.

    Raises:
        ClusterError: The cluster cannot come up.
    """
    plan = plan_up(replace(topology, has_servers=False), source, dry=False)
    try:
        apply(plan, accept_any_loss=False, show_status=_ignore)
        yield plan.cluster
    finally:
        take_down(plan.cluster, settings.STOP_GRACE_SECONDS, None, _ignore)


def _ignore(status: Any) -> None:
    """Show nothing."""
