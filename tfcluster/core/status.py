"""The status report of a cluster: the records behind the table and the stable JSON output of `status`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from tfcluster.core.states import ClusterState, RunState, TaskState


@dataclass(frozen=True)
class LastExit:
    """The last exit of a task: how and when its latest process ended.

    Attributes:
        reason: The exit status in words, such as `exit code 1` or `SIGKILL`.
        time: The Unix time of the exit, in seconds.
        detail: The cause that the task or its agent reported; empty if none was reported.
        log: The last lines of the task's log, if the task is not restarted automatically.
    """

    reason: str
    time: float
    detail: str = ""
    log: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LastExit:
        """Return the exit that `asdict` encoded."""
        return cls(**{**value, "log": tuple(value["log"])})

    def __str__(self) -> str:
        """Describe how and when the process ended, such as `SIGKILL at 2026-01-31 12:00:00`, in local time."""
        return f"{self.reason} at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.time))}"


@dataclass(frozen=True)
class TaskStatus:
    """The status of one task, a row of `status`; its fields are part of the stable JSON output."""

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
        """Return the short name, such as `worker:1`."""
        return f"{self.job}:{self.index}"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TaskStatus:
        """Return the status that `asdict` encoded."""
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
    """The status of one host of a cluster; `state` is `up`, `unreachable` or `down`."""

    host: str
    state: str
    agent_pid: int | None
    tensorflow: str | None


@dataclass(frozen=True)
class RunStatus:
    """The status of one run that the cluster's agent knows."""

    run: str
    program: str
    state: RunState
    seconds: float


@dataclass(frozen=True)
class ClusterStatus:
    """The complete report of `status`; the result of `to_json` is its stable JSON output."""

    cluster: str
    state: ClusterState
    spec: str
    hosts: tuple[HostStatus, ...]
    tasks: tuple[TaskStatus, ...]
    runs: tuple[RunStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `status -o json` prints."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterStatus:
        """Return the status that `to_json` encoded."""
        return cls(
            cluster=value["cluster"],
            state=ClusterState(value["state"]),
            spec=value["spec"],
            hosts=tuple(HostStatus(**host) for host in value["hosts"]),
            tasks=tuple(TaskStatus.from_json(task) for task in value["tasks"]),
            runs=tuple(RunStatus(**{**run, "state": RunState(run["state"])}) for run in value["runs"]),
        )
