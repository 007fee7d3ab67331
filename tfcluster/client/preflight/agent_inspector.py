"""The requests of a preflight to the agent of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from tfcluster import settings
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.core.forwarding import CertificateFacts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.topology import ClusterTopology
from tfcluster.protocol.api.cluster import (
    FailedCheck,
    Observation,
    ObserveRequest,
    PrepareReply,
    PrepareRequest,
    ReachRequest,
)


class AgentInspector:
    """Sends the requests of a preflight to a host's agent, which runs at least until `close`; see `Probe`.

    Args:
        client: The host's agent.

    Attributes:
        certificate: What is known of the host's certificate; None if it has none.
    """

    def __init__(self, client: AgentClient) -> None:
        self.certificate: CertificateFacts | None = None
        self._client = client
        self._streams: list[ResponseStream[Observation, NoReturn]] = []

    def observe(self) -> ObservedState | None:
        """Return the observed state of the cluster on the host; None if the cluster is not up there."""
        # An agent may exit or die just as the request arrives.
        reconnector: Reconnector[Observation, NoReturn] = Reconnector(
            self._client,
            StreamContext(self._client.transport.host),
            RetryPolicy(settings.WAIT_AGENTS, timeout=0.0, retry_initial=False),
        )
        return reconnector.connect(self._hold).observed

    def prepare(self, topology: ClusterTopology, *, listen: bool) -> tuple[PrepareReply, Sequence[FailedCheck]]:
        """Check the host for a topology; with `listen`, its allocated ports accept connections until `close`."""
        reply = self._client.call(PrepareRequest(topology))
        if listen:
            self._hold()  # this second stream has the agent listen on the ports that it holds by now
        return reply, ()

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        """Connect to addresses from the host, each with a timeout in seconds, and return the reason of each failure."""
        return self._client.call(ReachRequest(tuple(addresses), timeout)).failures

    def close(self) -> None:
        """End what was started on the host for the preflight, and wait for its exit."""
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
        self.certificate = event.certificate
        return event
