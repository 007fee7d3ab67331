"""Observe and check the hosts of a cluster in parallel, each through its agent or, in a dry run, through a probe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import StreamContext, map_hosts, partition
from tfcluster.client.reconnect import Reconnector, RetryPolicy
from tfcluster.client.rpc import AgentClient, ResponseStream
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import (
    Allocation,
    FailedCheck,
    Observation,
    ObserveRequest,
    PrepareReply,
    PrepareRequest,
    ReachRequest,
)

if TYPE_CHECKING:
    from tfcluster.core.hosts import Host
    from tfcluster.transport.ssh import HostReport

#: Called with the number of hosts examined so far and the number of all hosts.
Progress = Callable[[int, int], None]


def no_progress(done: int, count: int) -> None:
    """Ignore the progress of a preflight."""


class HostInspector(Protocol):
    """The requests of a preflight to one host: to its agent, or in a dry run to a probe that changes nothing."""

    def observe(self) -> ObservedState | None:
        """Return the observed state of the cluster on the host; None if the cluster is not up there."""

    def prepare(self, topology: ClusterTopology, *, listen: bool) -> tuple[PrepareReply, Sequence[FailedCheck]]:
        """Check the host for a topology.

        Args:
            topology: The topology.
            listen: Accept connections on the allocated ports until `close`.

        Returns:
            The result, and the problems with installed packages if the environment variables of the spec are not set.
        """

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        """Connect to addresses from the host, each with a timeout in seconds, and return the reason of each failure."""

    def close(self) -> None:
        """End what was started on the host for the preflight, and wait for its exit."""


class AgentInspector:
    """Inspects a host through its agent, which runs at least until `close`; see `HostInspector`.

    Args:
        client: The host's agent.
    """

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._streams: list[ResponseStream[Observation, NoReturn]] = []

    def observe(self) -> ObservedState | None:
        """See `HostInspector.observe`."""
        # An agent may exit or die just as the request arrives.
        reconnector: Reconnector[Observation, NoReturn] = Reconnector(
            self._client,
            StreamContext(self._client.transport.host),
            RetryPolicy(settings.WAIT_AGENTS, timeout=0.0, retry_initial=False),
        )
        return reconnector.connect(self._hold).observed

    def prepare(self, topology: ClusterTopology, *, listen: bool) -> tuple[PrepareReply, Sequence[FailedCheck]]:
        """See `HostInspector.prepare`."""
        reply = self._client.call(PrepareRequest(topology))
        if listen:
            self._hold()  # this second stream has the agent listen on the ports that it holds by now
        return reply, ()

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        """See `HostInspector.failures`."""
        return self._client.call(ReachRequest(tuple(addresses), timeout)).failures

    def close(self) -> None:
        """See `HostInspector.close`."""
        while self._streams:
            stream = self._streams.pop()
            if self._streams:
                stream.close()
            else:
                stream.close_and_reap()

    def _hold(self) -> Observation:
        stream = self._client.stream(ObserveRequest(), start=True)
        try:
            event = next(stream)
        except BaseException:
            stream.close_and_reap()
            raise
        self._streams.append(stream)
        return event


@dataclass
class HostPreflight:
    """What a preflight has learned of a host.

    Attributes:
        report: The report of the first contact; None for this machine.
        inspector: Sends further requests to the host; None if the host cannot be examined further.
        observed: The observed state of the cluster on the host; None if the cluster is not up there.
        tensorflow: The version of the host's TensorFlow; None if unknown.
        allocation: The ports and GPUs that the host allocated.
        problems: Everything that prevents the host from starting its tasks, each with the name of the check that
            failed.
        accounts: Other accounts on the host that can connect to its servers; None if there are none.
        unexamined: What a dry run could not examine, and why.
        is_examined: Whether the host's ports, GPUs, addresses and folders were examined.
    """

    report: HostReport | None = None
    inspector: HostInspector | None = None
    observed: ObservedState | None = None
    tensorflow: str | None = None
    allocation: Allocation = field(default_factory=lambda: Allocation({}, {}))
    problems: list[tuple[str, ClusterError]] = field(default_factory=list)
    accounts: OtherAccounts | None = None
    unexamined: list[str] = field(default_factory=list)
    is_examined: bool = False

    @property
    def clock_offset(self) -> float:
        """Return the seconds by which the host's clock is ahead of this machine's (negative if it is behind).

        The offset is 0 if it is not larger than the error of its measurement.
        """
        if self.report is None or abs(self.report.clock_offset) <= self.report.clock_error:
            return 0.0
        return self.report.clock_offset


def observe_hosts(cluster: Cluster, *, dry: bool, progress: Progress = no_progress) -> dict[str, HostPreflight]:
    """Connect to every host of a cluster in parallel and observe its state; call `close_inspectors` on the result.

    Args:
        cluster: The cluster.
        dry: Change nothing on any host. Otherwise this runs the setup commands that the spec lists for a host, once,
            and starts an agent on each host that has none.
        progress: Called with the number of hosts that are done, if there are several.

    Returns:
        The preflight of each host, in the order of the cluster's hosts.
    """
    count = len(cluster.hosts)
    show = (lambda done: progress(done, count)) if count > 1 else None
    if show is not None:
        show(0)
    # No timeout here: the setup commands of a host may take any time, and each transport has timeouts of its own.
    hosts, errors = partition(map_hosts(cluster.hosts, partial(_observe_host, cluster, dry), None, show))
    failed = {host: HostPreflight(problems=[_named("host", error)]) for host, error in errors.items()}
    return {host: hosts[host] if host in hosts else failed[host] for host in cluster.hosts}


def _observe_host(cluster: Cluster, dry: bool, host: str) -> HostPreflight:
    inspector: HostInspector | None
    if dry:
        report, inspector = cluster.probe(host)
    else:
        report = cluster.contact(host)
        has_problems = report is not None and bool(report.problems)
        inspector = None if has_problems else AgentInspector(cluster.connect(host))
    result = HostPreflight(report, inspector)
    if report is not None:
        result.tensorflow = report.tensorflow
        result.problems = [_named("host", problem) for problem in report.problems]
        result.unexamined = list(report.unexamined)
    if inspector is not None:
        try:
            result.observed = inspector.observe()
        except ClusterError as error:
            inspector.close()
            result.inspector = None
            result.problems.append(_named("tasks", error))
        except BaseException:
            inspector.close()
            raise
    return result


def _named(check: str, error: ClusterError) -> tuple[str, ClusterError]:
    return ("reach" if error.exit_code is ExitCode.UNREACHABLE else check), error


def prepare_hosts(cluster: Cluster, hosts: Mapping[str, HostPreflight], topology: ClusterTopology) -> None:
    """Run the checks of every host for a topology in parallel, and add their results to the preflight.

    Args:
        cluster: The cluster.
        hosts: The preflight of each host.
        topology: The desired topology, merged with the observed one.
    """
    examined = [host for host, each in hosts.items() if each.inspector is not None]

    def prepare(host: str) -> tuple[PrepareReply, Sequence[FailedCheck]]:
        each = hosts[host]
        assert each.inspector is not None, "the others are left out"
        return each.inspector.prepare(topology, listen=len(hosts) > 1 and each.observed is None)

    replies, errors = partition(map_hosts(examined, prepare, None))
    for host, error in errors.items():
        hosts[host].problems.append(_named("tasks", error))
    for host, (reply, installation) in replies.items():
        _add_reply(hosts[host], reply, installation, cluster.hosts[host])


def _add_reply(result: HostPreflight, reply: PrepareReply, installation: Sequence[FailedCheck], host: Host) -> None:
    result.is_examined = True
    result.tensorflow, result.allocation, result.accounts = reply.tensorflow, reply.allocation, reply.accounts
    result.problems += [(failure.check, failure.error) for failure in reply.problems]
    notes: list[str] = []
    if result.report is not None:
        from tfcluster.transport.dry_run_probe import environment_notes  # a cluster on this machine does not need ssh

        notes = environment_notes(host)
    if result.observed is not None:  # the running agent has checked everything, with the spec's environment variables
        result.unexamined = [note for note in result.unexamined if note not in notes]
    elif notes:  # the spec's environment variables may provide what a library is missing (as LD_LIBRARY_PATH does)
        messages = [failure.error.message for failure in installation]
        result.unexamined += [f"{message}; `env:` may change that: not examined" for message in messages]
    else:
        result.problems += [(failure.check, failure.error) for failure in installation]


def close_inspectors(hosts: Mapping[str, HostPreflight]) -> None:
    """End what was started on the hosts for the preflight; agents that have got a cluster since keep running."""
    inspectors = {host: each.inspector for host, each in hosts.items() if each.inspector is not None}
    map_hosts(inspectors, lambda host: inspectors[host].close(), settings.PREFLIGHT_EXIT_SECONDS)


def abort(cluster: Cluster, hosts: Mapping[str, HostPreflight]) -> None:
    """End a preflight after which nothing is applied, and disconnect from hosts on which the cluster is not up."""
    close_inspectors(hosts)
    disconnect(cluster, [host for host, each in hosts.items() if each.observed is None])


def disconnect(cluster: Cluster, hosts: Iterable[str]) -> None:
    """Close the connections to hosts that commands share."""
    map_hosts(hosts, lambda host: cluster.reach(host).disconnect(), settings.PREFLIGHT_EXIT_SECONDS)
