"""The pods of a cluster whose spec has `kubernetes:`: what would be applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import usage_error
from tfcluster.providers.manifests import job_manifests, pod_manifests

if TYPE_CHECKING:
    from tfcluster.spec.kubernetes import KubernetesSpec
    from tfcluster.spec.slurm import SlurmSpec


def expect_pods(topology: ClusterTopology, request: KubernetesSpec | SlurmSpec | None) -> KubernetesSpec:
    """Return the request of a spec for pods; one without `kubernetes:` raises an error."""
    from tfcluster.spec.kubernetes import KubernetesSpec

    if not isinstance(request, KubernetesSpec):
        raise usage_error(f"{topology.spec} has no `kubernetes:`", "Only pods have manifests.")
    return request


def describe(topology: ClusterTopology, request: KubernetesSpec) -> str:
    """Return the manifests that `up` applies."""
    return pod_manifests(topology, request).rstrip("\n")


def describe_job(topology: ClusterTopology, request: KubernetesSpec, arguments: Sequence[str]) -> str:
    """Return the manifests of a Job that runs a command for each task, without tfcluster."""
    return job_manifests(topology, request, arguments).rstrip("\n")
