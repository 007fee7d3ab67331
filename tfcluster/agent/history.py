"""What happened to a cluster and why, a JSON line each, kept across agents and after `down`."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tfcluster.agent.machine import Event, Machine
from tfcluster.agent.supervised import Supervised
from tfcluster.model.states import TaskState
from tfcluster.protocol.framing import encode


class History:
    """Appends to the file of events. A full disk costs events, never the supervision."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self, event: str, *, task: str | None = None, detail: str = "") -> None:
        """Append one event.

        Args:
            event: One word for it, as `ready`.
            task: The short name of the task that it happened to; None for the cluster.
            detail: More, for people.
        """
        line = encode({"time": round(time.time(), 3), "event": event, "task": task, "detail": detail})
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)


def story(task: Supervised, before: Machine, event: Event) -> tuple[str, str] | None:
    """What to record of a step of a task's machine: the event's word and its detail; None for nothing new."""
    after = task.machine
    if after.state is before.state:
        return ("killed", "it does not answer") if event is Event.MISSED and after.misses < before.misses else None
    how = task.last_exit.reason if task.last_exit else ""
    match after.state:
        case TaskState.STARTING:
            return "started", f"pid {task.process.pid}" if task.process else ""
        case TaskState.READY if before.state is TaskState.STARTING:
            return "ready", f"{max(0.0, time.time() - task.started):.2f} s after its start"
        case TaskState.READY:
            return "ready", "it answers again"
        case TaskState.UNRESPONSIVE:
            return "unresponsive", f"it did not answer {after.misses} times in a row"
        case TaskState.BACKING_OFF:
            wait = max(0.0, (after.wake_at or 0.0) - after.ends[-1])
            return "died", f"{how}; it is started again " + (f"in {wait:.3g} s" if wait else "at once")
        case TaskState.FAILED:
            policy = after.policy
            limit = f"more than {policy.limit} restarts in {policy.window:g} s"
            return "failed", f"{how}; " + ("restart policy never" if policy.policy == "never" else limit)
        case TaskState.STOPPING:
            return "stopping", ""
        case TaskState.STOPPED:
            return "stopped", how
