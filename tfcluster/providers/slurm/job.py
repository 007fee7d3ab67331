"""A job of Slurm that a cluster runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tfcluster.core.status import JobStatus
from tfcluster.records import record_class


@record_class(frozen=True)
class SlurmJob:
    """The job, as the registry has it; it is pending as long as it has no nodes."""

    id: int
    submitted: int  # in Unix seconds: Slurm uses an id again
    is_own: bool  # `up` has submitted it, so `down` cancels it; otherwise the user is in it
    output: str  # the file to which the job, or its step that holds the nodes, writes how it ends
    nodes: tuple[str, ...] = ()  # the node of each host, in the order node0, node1 and so on
    ends: int | None = None  # in Unix seconds; None if its time is not limited, or not known yet
    cpus: int | None = None  # of each node, those of the one that has the fewest; None if not known
    gpus: Mapping[str, str] = field(default_factory=dict)  # by node, as --gpus of srun has them, such as `a100:2`
    cluster: str | None = None  # Slurm's cluster that has the job; None for the one that its commands ask by default
    # In an allocation of the user: the process whose step holds the nodes, and the machine that it runs on.
    holder_host: str | None = None
    holder_pid: int | None = None
    holder_start_time: int | None = None

    @property
    def squeue(self) -> str:
        """Return the command that shows the job."""
        return f"squeue {'' if self.cluster is None else f'-M {self.cluster} '}-j {self.id}"

    def status(self, now: float) -> JobStatus:
        """Return the job's part of a cluster's status at a Unix time, as `up` last saw it."""
        return JobStatus(self.id, "running" if self.nodes else "pending", self.nodes, seconds_until(self.ends, now))


@record_class(frozen=True)
class HostJob:
    """The job in which the agent of a host runs."""

    id: int
    squeue: str  # the path of Slurm's command on the machine of `up`, which knows the end of the job's time
    grace: int  # how many seconds before that runs get SIGTERM


def seconds_until(end: float | None, now: float) -> float | None:
    """Return the seconds that are left until a Unix time."""
    return None if end is None else max(0.0, end - now)
