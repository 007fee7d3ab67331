"""The provider `slurm`: the nodes of a job that `up` submits, or of the job that the user is in."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tfcluster.core.status import JobStatus
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.providers.provider import Acquisition, Facts, HostPlan, Provider, Show
from tfcluster.providers.slurm import jobs
from tfcluster.providers.slurm.job import SlurmJob

if TYPE_CHECKING:
    from tfcluster.providers.slurm.request import SlurmSpec


class SlurmProvider(Provider["SlurmSpec"]):
    """The job of one cluster; there is one as soon as it is submitted, and it has nodes as soon as it runs."""

    name: ClassVar[str] = "slurm"
    not_yet: ClassVar[str] = "the nodes can be checked once a job runs"

    def __init__(self, cluster: str, facts: Facts | None) -> None:
        super().__init__(cluster, facts)
        self.job = None if facts is None else decode(SlurmJob, facts, lenient=True)

    @property
    def facts(self) -> Facts | None:
        """The job as JSON values."""
        return None if self.job is None else to_json(self.job)

    @property
    def _known_job(self) -> SlurmJob:
        assert self.job is not None, "a cluster that is registered has one"
        return self.job

    @classmethod
    def not_started_here(cls, cluster: str, request: SlurmSpec) -> ClusterError:
        """Return the error for a cluster of which this machine knows no job."""
        return ClusterError(
            f"cluster {cluster!r} was not started from this machine: no job of it is known here",
            hint="`tfcluster up` submits one, and starts the cluster in it.",
            exit_code=ExitCode.NOT_RUNNING,
        )

    def check(self, topology: ClusterTopology, request: SlurmSpec) -> str:
        """Check that Slurm would accept the job, or that the user is in one."""
        jobs.check_request(self.cluster, request, topology.hosts[0])
        inside = jobs.allocation()
        return "it would accept the job" if inside is None else f"this is job {inside}"

    def plan(self, topology: ClusterTopology, request: SlurmSpec, show: Show) -> HostPlan:
        """Plan nothing: a job that runs is used, otherwise one is submitted."""
        job = self.job
        if job is None or not job.nodes or jobs.look_up(job) is None:
            return HostPlan()
        return HostPlan((), jobs.place(topology, job, request), is_complete=True)

    def describe(self, topology: ClusterTopology, request: SlurmSpec) -> str:
        """Return the batch script that `up` would submit, or the job that it waits for, or that it is in."""
        if self.job is not None and jobs.look_up(self.job) is not None:
            return f"{self.cluster}: Slurm job {self.job.id} is waited for, and nothing is submitted"
        if (inside := jobs.allocation()) is not None:
            job = jobs.adopt(self.cluster, inside)
            return f"{self.cluster}: this is Slurm job {job.id}: its nodes are used, and nothing is submitted"
        output = jobs.output_path(self.cluster, "%j")
        return jobs.batch_script(self.cluster, request, topology.hosts[0], output).rstrip("\n")

    def acquire(self, topology: ClusterTopology, request: SlurmSpec, command: Acquisition) -> ClusterTopology:
        """Get the nodes of a job: of the cluster's own, or the one that the user is in, or a new one.

        An interrupt leaves a job in the queue, and the next call continues to wait.
        """
        job = self._get_job(topology, request, command)
        running = jobs.wait_until_running(job, command.show)
        if not job.is_own:
            running = jobs.start_holder(running, topology.hosts[0])
        placed = jobs.place(topology, running, request)
        if running != job:
            self._remember(running, placed, command)
        return placed

    def _get_job(self, topology: ClusterTopology, request: SlurmSpec, command: Acquisition) -> SlurmJob:
        """Return the job of the cluster, which is registered; one that has ended is forgotten."""
        job, inside = self.job, jobs.allocation()
        if job is not None and jobs.look_up(job) is None:
            ended, job, self.job = job, None, None
            command.warn(jobs.ended_error(ended).message)
            jobs.wait_for_completion(ended)
            jobs.release(ended)
            command.forget()
        if job is not None and inside not in (None, job.id):
            raise usage_error(
                f"cluster {self.cluster!r} is in Slurm job {job.id}, and this is job {inside}",
                f"`env -u SLURM_JOB_ID tfcluster up` continues it, `tfcluster down -c {self.cluster}` stops it; or "
                "give this one another `name:`.",
            )
        if job is None and inside is not None:
            job = jobs.adopt(self.cluster, inside)
        elif job is None:
            job = jobs.submit(self.cluster, request, topology.hosts[0])
            command.warn(f"submitted Slurm job {job.id}")
        self.is_acquired = True
        if not job.nodes:
            self._remember(job, None, command)
        return job

    def _remember(self, job: SlurmJob, placed: ClusterTopology | None, command: Acquisition) -> None:
        self.job = job
        command.remember(() if placed is None else placed.hosts)

    def left_by_interrupt(self) -> str | None:
        """Return that a job that was submitted here stays in the queue."""
        if self.job is None or self.job.nodes or not self.job.is_own:
            return None
        return (
            f"job {self.job.id} stays in the queue: `tfcluster up` continues to wait, "
            f"`tfcluster down -c {self.cluster}` cancels it"
        )

    @property
    def place(self) -> str:
        """The job that the cluster is in."""
        return f"in Slurm job {self._known_job.id}"

    def require_hosts(self) -> None:
        """Raise an error if the job is pending, or is known to have ended."""
        jobs.check(self._known_job)

    def pending(self) -> str | None:
        """Return what shows why a job is in the queue; Slurm is not asked, as scripts call `status` often."""
        job = self._known_job
        return None if job.nodes else f"Slurm job {job.id}: `{job.squeue}` shows why"

    def job_status(self, now: float) -> JobStatus | None:
        """Return the job's part of the cluster's status."""
        return self._known_job.status(now)

    def find_end(self) -> ClusterError | None:
        """Ask Slurm whether the job has ended, and return the error that says so."""
        return jobs.ended_error(self._known_job) if jobs.look_up(self._known_job) is None else None

    def describe_release(self) -> str:
        """Return that the job is ended."""
        job = self._known_job
        return f"ends Slurm job {job.id}" if job.is_own else f"ends what holds the nodes of Slurm job {job.id}"

    def release(self) -> None:
        """End a job that was submitted here, or the step that holds the nodes of the user's allocation."""
        jobs.release(self._known_job)


PROVIDER = SlurmProvider
