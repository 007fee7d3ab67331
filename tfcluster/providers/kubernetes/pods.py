"""The pods of Kubernetes that a cluster runs in."""

from __future__ import annotations

from tfcluster.records import record_class


@record_class(frozen=True)
class PodSet:
    """The pods of a cluster, as the registry has them; their objects have the name of the cluster."""

    cluster: str
    context: str  # of kubectl; empty for its current one
    namespace: str

    def pod(self, host: str) -> str:
        """Return the name of the pod that a host is."""
        return f"{self.cluster}-{host.removeprefix('pod')}"

    def address(self, host: str) -> str:
        """Return the name that the other pods resolve."""
        return f"{self.pod(host)}.{self.cluster}.{self.namespace}.svc"
