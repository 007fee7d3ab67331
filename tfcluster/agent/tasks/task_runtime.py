"""One task as the agent has it: its machine, its process, and what was last seen of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tfcluster.agent.tasks.log_tail import tail_of_log
from tfcluster.agent.tasks.oom import OomDetector
from tfcluster.agent.tasks.resource_usage import ResourceUsage, read_usage
from tfcluster.agent.tasks.state_machine import TaskStateMachine
from tfcluster.core.devices import Device
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.status import LastExit, TaskStatus
from tfcluster.core.topology import Task
from tfcluster.process_handle import ProcessHandle

# The kernel counts processor time in hundredths of a second: over a shorter time the share of a core is noise.
_SHORTEST_SECONDS = 0.5
#: How a task ended that had no process at all.
NOT_STARTED = "not started"
_AFTER_DEATH = {
    TaskState.BACKING_OFF: "waits to be started again",
    TaskState.STARTING: "is being started again",
    TaskState.FAILED: "has failed",
}


@dataclass
class TaskRuntime:
    """One task.

    Attributes:
        task: What it is.
        machine: Where it stands.
        spool: What its process prints into.
        process: Its process; None while it has none.
        pidfd: Its process's pidfd; None while it has none.
        started: Unix time at which its process was started.
        generation: That of the topology which its process was started in.
        devices: The devices that it named in its latest answer.
        last_exit: How its latest process ended.
        report: What its process said went wrong while it started.
        being_checked: A health check is under way.
        timer: Wakes its machine.
        samples: What it used at the latest two samples, the latest first.
        memory: What the kernel's out-of-memory killer does around its process; None while it has none.
        killed: This agent has sent its process SIGKILL.
    """

    task: Task
    machine: TaskStateMachine
    log_buffer: Path
    process: ProcessHandle | None = None
    pidfd: int | None = None
    started: float = 0.0
    generation: int = 0
    devices: tuple[Device, ...] = ()
    last_exit: LastExit | None = None
    report: str = ""
    being_checked: bool = False
    timer: asyncio.TimerHandle | None = None
    samples: tuple[ResourceUsage, ...] = ()
    memory: OomDetector | None = None
    killed: bool = False

    def forget_process(self) -> None:
        """Its process has ended."""
        self.process = self.pidfd = self.memory = None
        self.devices = self.samples = ()

    def sample_use(self) -> None:
        """Remember what its process has used and met so far: the next status and its end are compared with it."""
        if self.process is not None and (usage := read_usage(self.process.pid)) is not None:
            self.samples = (usage, *self.samples[:1])
        if self.memory is not None:
            self.memory.sample(time.monotonic())

    def trouble(self) -> str:
        """In words why it cannot serve, as `worker:1 died (SIGKILL) and has failed`."""
        state = self.machine.state
        if state in (TaskState.READY, TaskState.UNRESPONSIVE):
            return f"{self.task.short} at {self.task.address} does not answer"
        if state is TaskState.STOPPING and self.machine.again:
            return f"{self.task.short} is being restarted by `tfcluster restart`"
        if self.last_exit is not None and self.last_exit.reason == NOT_STARTED:
            return f"{self.task.short} is {state.value}: {self.last_exit.detail}"
        if self.last_exit is not None:
            detail = f": {self.last_exit.detail}" if self.last_exit.detail else ""
            then = _AFTER_DEATH.get(state, f"is {state.value}")
            return f"{self.task.short} died ({self.last_exit.reason}{detail}) and {then}"
        return f"{self.task.short} is {state.value}"

    def status(self) -> TaskStatus:
        """What `status` says of it."""
        usage = read_usage(self.process.pid) if self.process else None
        running = self.process is not None and self.machine.state in HAS_PROCESS
        ready = self.machine.state is TaskState.READY
        return TaskStatus(
            task=self.task.name,
            job=self.task.job,
            index=self.task.index,
            host=self.task.host,
            address=self.task.address,
            state=self.machine.state,
            pid=self.process.pid if self.process else None,
            restarts=self.machine.restarts,
            uptime_s=round(max(0.0, time.time() - self.started), 1) if running else None,
            cpu_percent=self._percent(usage) if usage else None,
            rss_bytes=usage.rss_bytes if usage else None,
            devices=tuple(device.name for device in self.devices) if ready else (),
            last_exit=self._told_exit(),
        )

    def _percent(self, usage: ResourceUsage) -> float:
        """Share of one core since the latest sample that lies long enough back, or else since the start."""
        far = (sample for sample in self.samples if usage.at - sample.at >= _SHORTEST_SECONDS)
        return usage.percent_since(next(far, None))

    def _told_exit(self) -> LastExit | None:
        """How its latest process ended; of a task that stays ended with the end of its log."""
        if self.last_exit is None or self.machine.state not in TERMINAL_STATES:
            return self.last_exit
        return replace(self.last_exit, log=tail_of_log(self.log_buffer))
