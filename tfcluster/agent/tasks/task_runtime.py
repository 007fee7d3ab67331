"""The runtime state of one task in the agent: its state machine, its process and its latest health and usage."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.tasks.resource_usage import OomDetector, ResourceUsage, read_usage
from tfcluster.agent.tasks.state_machine import TaskStateMachine
from tfcluster.core.devices import Device
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.status import NOT_STARTED, LastExit, TaskStatus
from tfcluster.core.topology import Task
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.paths import LOCAL_HOST

_AFTER_EXIT = {
    TaskState.BACKING_OFF: "is backing off",
    TaskState.STARTING: "is restarting",
    TaskState.FAILED: "has failed",
}


@dataclass(eq=False)
class TaskRuntime:
    """The runtime state of one task; equal only to itself, so that it can be in sets."""

    spec: Task
    machine: TaskStateMachine
    log_buffer: Path  # the file that the task's process prints into
    process: ProcessHandle | None = None
    pidfd: int | None = None
    started: float = 0.0  # Unix time in seconds at which the process was started
    generation: int = 0  # that of the topology in which the process was started
    devices: tuple[Device, ...] = ()  # as reported in the latest answer to a probe
    last_exit: LastExit | None = None  # that of the latest process; None if none has ended
    startup_error: str = ""  # the error that the process reported while it started, or another explanation of its exit
    being_checked: bool = False  # whether a health check is in progress
    timer: asyncio.TimerHandle | None = None  # triggers the next event of the state machine
    samples: tuple[ResourceUsage, ...] = ()  # the latest two, the newest first
    memory: OomDetector | None = None  # for the process; None while there is no process
    killed: bool = False  # whether this agent has sent SIGKILL to the process

    def clear_process(self) -> None:
        """Clear all state of the task's process after it has exited."""
        self.process = self.pidfd = self.memory = None
        self.devices = self.samples = ()

    def sample_usage(self) -> None:
        """Sample the resource usage and OOM counters of the task's process, to compare later values with them."""
        if self.process is not None and (usage := read_usage(self.process.pid)) is not None:
            self.samples = (usage, *self.samples[:1])
        if self.memory is not None:
            self.memory.sample(time.monotonic())

    def describe_problem(self) -> str:
        """Return why the task cannot serve, as text such as `worker:1 on alpha died (SIGKILL) and has failed`."""
        state = self.machine.state
        on_host = "" if self.spec.host == LOCAL_HOST else f" on {self.spec.host}"
        if state in (TaskState.READY, TaskState.UNRESPONSIVE):
            return f"{self.spec.short} at {self.spec.address}{on_host} does not answer"
        name = self.spec.short + on_host
        if state is TaskState.STOPPING and self.machine.restart_pending:
            return f"{name} is being restarted by `tfcluster restart`"
        if self.last_exit is not None and self.last_exit.reason == NOT_STARTED:
            return f"{name} is {state.value}: {self.last_exit.detail}"
        if self.last_exit is not None and not self.last_exit.expected:
            detail = f": {self.last_exit.detail}" if self.last_exit.detail else ""
            next_step = _AFTER_EXIT.get(state, f"is {state.value}")
            return f"{name} died ({self.last_exit.reason}{detail}) and {next_step}"
        return f"{name} is {state.value}"

    def status(self) -> TaskStatus:
        """Return the task's entry in the output of `status`."""
        usage = read_usage(self.process.pid) if self.process else None
        running = self.process is not None and self.machine.state in HAS_PROCESS
        ready = self.machine.state is TaskState.READY
        return TaskStatus(
            task=self.spec.name,
            job=self.spec.job,
            index=self.spec.index,
            host=self.spec.host,
            address=self.spec.address,
            state=self.machine.state,
            pid=self.process.pid if self.process else None,
            restarts=self.machine.restarts,
            uptime_s=round(max(0.0, time.time() - self.started), 1) if running else None,
            cpu_percent=self._percent(usage) if usage else None,
            rss_bytes=usage.rss_bytes if usage else None,
            devices=tuple(device.name for device in self.devices) if ready else (),
            last_exit=self._last_exit_with_log(),
        )

    def _percent(self, usage: ResourceUsage) -> float:
        """Return the CPU usage in percent of one core since the newest sample that is old enough, or else the start."""
        old_enough = (sample for sample in self.samples if usage.at - sample.at >= settings.CPU_SAMPLE_MIN_SECONDS)
        return usage.percent_since(next(old_enough, None))

    def _last_exit_with_log(self) -> LastExit | None:
        """Return how the latest process ended, with the end of the log if the task has stopped or failed."""
        if self.last_exit is None or self.machine.state not in TERMINAL_STATES:
            return self.last_exit
        return replace(
            self.last_exit,
            log=self.log_tail(),
        )

    def log_tail(self) -> tuple[str, ...]:
        """Return the last lines of the task's log buffer, and of a long line only the end."""
        try:
            with self.log_buffer.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - settings.FAILED_TASK_LOG_BYTES))
                data = file.read(settings.FAILED_TASK_LOG_BYTES)
        except OSError:
            return ()
        lines = data.lstrip(b"\0").decode(errors="replace").splitlines()  # the buffer begins with a hole
        return tuple(lines[-settings.FAILED_TASK_LOG_LINES :])
