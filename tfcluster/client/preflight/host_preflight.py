"""What a preflight learns of one host, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfcluster.core.forwarding import CertificateFacts
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import Allocation

if TYPE_CHECKING:
    from tfcluster.client.preflight.agent_inspector import AgentInspector
    from tfcluster.transport.dry_run_probe import Probe
    from tfcluster.transport.ssh import HostReport


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
        certificate: What is known of the host's certificate; None if it has none.
        accounts: Other accounts on the host that can connect to its servers; None if there are none.
        unexamined: What a dry run could not examine, and why.
        is_examined: Whether the host's ports, GPUs, addresses and folders were examined.
    """

    report: HostReport | None = None
    inspector: AgentInspector | Probe | None = None
    observed: ObservedState | None = None
    tensorflow: str | None = None
    allocation: Allocation = field(default_factory=lambda: Allocation({}, {}))
    problems: list[tuple[str, ClusterError]] = field(default_factory=list)
    certificate: CertificateFacts | None = None
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

    def reach_problem(self) -> ClusterError | None:
        """Return why the host cannot be reached; None if it can."""
        return next((error for check, error in self.problems if check == "reach"), None)
