"""A job of Slurm that a cluster runs in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlurmJob:
    """The job, as the registry has it; it is pending as long as it has no nodes."""

    id: int
    submitted: int  # in Unix seconds: Slurm uses an id again
    is_own: bool  # `up` has submitted it, so `down` cancels it; otherwise the user is in it
    output: str  # the file to which the job, or its step that holds the nodes, writes how it ends
    nodes: tuple[str, ...] = ()  # the node of each host, in the order node0, node1 and so on
    ends: int | None = None  # in Unix seconds; None if its time is not limited, or not known yet
    # In an allocation of the user: the process whose step holds the nodes, and the machine that it runs on.
    holder_host: str | None = None
    holder_pid: int | None = None
    holder_start_time: int | None = None

    def status(self, now: float) -> JobStatus:
        """Return the job's part of a cluster's status at a Unix time."""
        ends_in_s = None if self.ends is None else max(0.0, self.ends - now)
        return JobStatus(self.id, "running" if self.nodes else "pending", self.nodes, ends_in_s)


@dataclass(frozen=True)
class JobStatus:
    """The job in the status of a cluster; its fields are part of the stable JSON output."""

    id: int
    state: str  # `pending` or `running`
    nodes: tuple[str, ...]  # the node of each host, in the order node0, node1 and so on
    ends_in_s: float | None  # None if its time is not limited, or not known yet
