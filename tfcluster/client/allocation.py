"""The allocation of a cluster whose spec has `slurm:`: get one or continue to wait for it, and end it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tfcluster.client.cluster import Cluster, read_registry, register, unregister
from tfcluster.client.preflight import preflight
from tfcluster.client.preflight.checks import ALL_HOSTS, CheckResult, Severity, failed_check
from tfcluster.client.rpc.parallel import warn
from tfcluster.core.slurm import SlurmJob
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.providers import slurm
from tfcluster.spec.slurm import SlurmSpec


def _registered_job(cluster: str) -> SlurmJob | None:
    """Return the job of a cluster unless it has ended; then forget it, with the hosts that were its nodes."""
    registered = read_registry(cluster)
    job = registered.job if registered else None
    if job is None:
        return None
    if slurm.look_up(job) is not None:
        return job
    warn(slurm.ended_error(job).message)
    slurm.wait_for_completion(job)
    forget(cluster, job)
    return None


def find_nodes(topology: ClusterTopology, request: SlurmSpec) -> ClusterTopology | None:
    """Return a topology with the nodes that its cluster has; None if it has none. This changes nothing."""
    registered = read_registry(topology.cluster)
    job = registered.job if registered else None
    if job is None or not job.nodes or slurm.look_up(job) is None:
        return None
    return slurm.place(topology, job, request)


def check_hosts(
    topology: ClusterTopology, request: SlurmSpec, progress: preflight.Progress | None = None
) -> tuple[list[CheckResult], ExitCode]:
    """Check Slurm as `up` uses it, and the nodes of a job that runs; see `preflight.check_hosts`."""
    try:
        slurm.check_request(topology.cluster, request, topology.hosts[0])
        placed = find_nodes(topology, request)
    except ClusterError as error:
        return [failed_check(ALL_HOSTS, "slurm", error)], ExitCode.FAILED
    inside = slurm.allocation()
    result = "it would accept the job" if inside is None else f"this is job {inside}"
    if placed is None:
        nodes = "the nodes can be checked once a job runs"
        return [CheckResult(ALL_HOSTS, "slurm", Severity.NOTE, result, nodes)], ExitCode.DONE
    results, code = preflight.check_hosts(placed, progress)
    return [CheckResult(ALL_HOSTS, "slurm", Severity.OK, result), *results], code


def describe(topology: ClusterTopology, request: SlurmSpec) -> str:
    """Return what `up` would do: the batch script that it would submit, or that it uses the allocation."""
    if (inside := slurm.allocation()) is not None:
        job = slurm.adopt(topology.cluster, inside)
        return f"{topology.cluster}: this is Slurm job {job.id}: its nodes are used, and nothing is submitted"
    return slurm.batch_script(
        topology.cluster, request, topology.hosts[0], slurm.output_path(topology.cluster, "%j")
    ).rstrip("\n")


@contextlib.contextmanager
def temporary_allocation(
    topology: ClusterTopology, request: SlurmSpec, show: Callable[[str], None]
) -> Iterator[ClusterTopology]:
    """Yield the topology of a cluster with nodes as its hosts; its job ends with the context, also in the queue."""
    job = get_job(topology, request)
    try:
        placed = wait_for_nodes(topology, job, request, show)
        registered = read_registry(topology.cluster)
        if registered is not None and registered.job is not None:
            job = registered.job  # it has the process that holds the nodes of the user's allocation
        yield placed
    finally:
        forget(topology.cluster, job)


def allocate(topology: ClusterTopology, request: SlurmSpec, show: Callable[[str], None]) -> ClusterTopology:
    """Get the nodes of a cluster, and return its topology with them as its hosts.

    `show` is called with a line while a job waits in the queue. An interrupt leaves it there, and the next call
    continues to wait.
    """
    job = get_job(topology, request)
    try:
        return wait_for_nodes(topology, job, request, show)
    except KeyboardInterrupt:
        if job.is_own:
            warn(
                f"job {job.id} stays in the queue: `tfcluster up` continues to wait, "
                f"`tfcluster down -c {topology.cluster}` cancels it"
            )
        raise


def get_job(topology: ClusterTopology, request: SlurmSpec) -> SlurmJob:
    """Return the job of a cluster, or the one that the user is in, or a new one; it is registered."""
    cluster, inside = topology.cluster, slurm.allocation()
    job = _registered_job(cluster)
    if job is not None and inside not in (None, job.id):
        raise usage_error(
            f"cluster {cluster!r} is in Slurm job {job.id}, and this is job {inside}",
            f"`env -u SLURM_JOB_ID tfcluster up` continues it, `tfcluster down -c {cluster}` stops it; or give this "
            "one another `name:`.",
        )
    if job is None and inside is not None:
        job = slurm.adopt(cluster, inside)
    elif job is None:
        job = slurm.submit(cluster, request, topology.hosts[0])
        warn(f"submitted Slurm job {job.id}")
    if not job.nodes:
        register(Cluster(cluster, (), topology.head().host, job))
    return job


def wait_for_nodes(
    topology: ClusterTopology, job: SlurmJob, request: SlurmSpec, show: Callable[[str], None]
) -> ClusterTopology:
    """Wait until a job runs, and return the topology with its nodes, which are registered, as the hosts."""
    running = slurm.wait_until_running(job, show)
    if not job.is_own:
        running = slurm.start_holder(running, topology.hosts[0])
    placed = slurm.place(topology, running, request)
    if running != job:
        register(Cluster(topology.cluster, placed.hosts, topology.head().host, running))
    return placed


def forget(cluster: str, job: SlurmJob) -> None:
    """End a job, or what holds its nodes, and forget the cluster."""
    slurm.release(job)
    unregister(cluster)
