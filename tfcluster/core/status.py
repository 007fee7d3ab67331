"""What `status` reports of a cluster: the records behind its table and its JSON contract."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from tfcluster.core.states import ClusterState, RunState, TaskState


@dataclass(frozen=True)
class LastExit:
    """How a task's latest process ended.

    Attributes:
        reason: In words, as `exit code 1` or `SIGKILL`.
        time: Unix time in seconds.
        detail: What the task, or its agent, said went wrong; empty when nothing was said.
        log: The last lines of its log, when it is not started again by itself.
    """

    reason: str
    time: float
    detail: str = ""
    log: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LastExit:
        """The exit that `asdict` described."""
        return cls(**{**value, "log": tuple(value["log"])})

    def __str__(self) -> str:
        """How and when, as `SIGKILL at 2026-01-31 12:00:00`, in local time."""
        return f"{self.reason} at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.time))}"


@dataclass(frozen=True)
class TaskStatus:
    """One row of `status`; the fields are the contract's."""

    task: str
    job: str
    index: int
    host: str
    address: str
    state: TaskState
    pid: int | None
    restarts: int
    uptime_s: float | None
    cpu_percent: float | None
    rss_bytes: int | None
    devices: tuple[str, ...]
    last_exit: LastExit | None

    @property
    def short(self) -> str:
        """The short name, as `worker:1`."""
        return f"{self.job}:{self.index}"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TaskStatus:
        """The status that `asdict` described."""
        last_exit = value["last_exit"]
        return cls(
            **{
                **value,
                "state": TaskState(value["state"]),
                "devices": tuple(value["devices"]),
                "last_exit": LastExit.from_json(last_exit) if last_exit else None,
            }
        )


@dataclass(frozen=True)
class HostStatus:
    """One host of a cluster; `state` is `up`, `unreachable` or `down`."""

    host: str
    state: str
    agent_pid: int | None
    tensorflow: str | None


@dataclass(frozen=True)
class RunStatus:
    """One run that the cluster's agent knows of."""

    run: str
    program: str
    state: RunState
    seconds: float


@dataclass(frozen=True)
class ClusterStatus:
    """Everything that `status` reports; `to_json` is the contract."""

    cluster: str
    state: ClusterState
    spec: str
    hosts: tuple[HostStatus, ...]
    tasks: tuple[TaskStatus, ...]
    runs: tuple[RunStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that `status -o json` prints."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterStatus:
        """The status that `to_json` described."""
        return cls(
            cluster=value["cluster"],
            state=ClusterState(value["state"]),
            spec=value["spec"],
            hosts=tuple(HostStatus(**host) for host in value["hosts"]),
            tasks=tuple(TaskStatus.from_json(task) for task in value["tasks"]),
            runs=tuple(RunStatus(**{**run, "state": RunState(run["state"])}) for run in value["runs"]),
        )
