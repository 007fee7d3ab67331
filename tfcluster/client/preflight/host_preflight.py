"""What a preflight asks the agent of one host, and what it learns of the host, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tfcluster import settings
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.core.forwarding import CertificateFacts
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Request
from tfcluster.protocol.api.cluster import (
    Allocation,
    Observation,
    ObserveRequest,
    Preparation,
    PrepareRequest,
    ReachRequest,
)

if TYPE_CHECKING:
    from tfcluster.transport.dry_run_probe import Probe
    from tfcluster.transport.host_transport import HostReport

E = TypeVar("E")
R = TypeVar("R")


class AgentInspector:
    """Sends the requests of a preflight to a host's agent, which runs at least until `close`; see `Probe`.

    Attributes:
        has_cluster: Whether the agent has got a cluster, so that it keeps running after `close`.
    """

    def __init__(self, client: AgentClient) -> None:
        self.has_cluster = False
        self._client = client
        self._stream: ResponseStream[Any, Any] | None = None  # the latest one

    def observe(self) -> Observation:
        """Return what the cluster has on the host."""
        policy = RetryPolicy(settings.WAIT_AGENTS, timeout=0.0, retry_initial=False)
        reconnector: Reconnector[Any, Any] = Reconnector(
            self._client, StreamContext(self._client.transport.host), policy
        )
        # An agent may exit or die just as the request arrives.
        return reconnector.connect(lambda: self._request(ObserveRequest()).result())

    def prepare(self, topology: ClusterTopology, *, listens: bool) -> Preparation:
        """Check the host for a topology; with `listens`, its allocated ports accept connections until `close`."""
        return next(self._request(PrepareRequest(topology, listens)))

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        """Connect to addresses from the host, each with a timeout in seconds, and return the reason of each failure."""
        return self._client.call(ReachRequest(tuple(addresses), timeout)).failures

    def close(self) -> None:
        """End what was started on the host for the preflight, and wait for its exit."""
        if self._stream is not None and self.has_cluster:
            self._stream.close()
        elif self._stream is not None:
            self._stream.close_and_reap()
        self._stream = None

    def _request(self, request: Request[E, R]) -> ResponseStream[E, R]:
        stream = self._client.stream(request, start=True)
        self._stream = stream
        return stream


@dataclass
class HostPreflight:
    """What a preflight has learned of a host.

    `problems` is everything that prevents the host from starting its tasks, each with the name of the check that
    failed.
    """

    report: HostReport | None = None  # of the first contact; None for this machine
    inspector: AgentInspector | Probe | None = None  # None if the host cannot be examined further
    observed: ObservedState | None = None  # None if the cluster is not up there
    tensorflow: str | None = None  # the version; None if unknown
    allocation: Allocation = field(default_factory=lambda: Allocation({}, {}))
    problems: list[tuple[str, ClusterError]] = field(default_factory=list)
    certificate: CertificateFacts | None = None  # None if the host has none
    accounts: OtherAccounts | None = None  # other accounts that can connect to the host's servers
    unexamined: list[str] = field(default_factory=list)  # what a dry run could not examine, and why
    is_examined: bool = False  # the host's ports, GPUs, addresses and folders were examined

    @property
    def clock_offset(self) -> float:
        """Return the seconds by which the host's clock is ahead of this machine's (negative if it is behind).

        The offset is 0 if it is not larger than the error of its measurement.
        """
        if self.report is None or abs(self.report.clock_offset) <= self.report.clock_error:
            return 0.0
        return self.report.clock_offset

    def reach_problem(self) -> ClusterError | None:
        """Return why the host cannot be reached; None if it can."""
        return next((error for check, error in self.problems if check == "reach"), None)
