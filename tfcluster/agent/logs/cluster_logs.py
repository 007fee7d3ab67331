"""The logs that an agent keeps: the cluster's events, the agent's own log, and the tasks' logs with their log writer.

All of them stay after `down`. If the disk is full, supervision continues, and the latest lines of the first two are
written when there is room again.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from pathlib import Path

from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.subprocesses import HelperProcess
from tfcluster.core.topology import LogLimits
from tfcluster.processes.logs import log_writer
from tfcluster.processes.logs.log_writer import LogWriter
from tfcluster.processes.logs.rotating_log import LineLog
from tfcluster.protocol.codec import encode

_logger = logging.getLogger(__name__)


class EventLog:
    """Appends events to the event log, and to the agent's own log; `path` is the newest file of the event log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineLog(path)

    def record(self, event: str, *, task: str | None = None, detail: str = "") -> None:
        """Append one event, with the short name of the task that it concerns; None for the whole cluster."""
        now = round(time.time(), 3)
        self._lines.append(encode({"time": now, "event": event, "task": task, "detail": detail}), now)
        _logger.info("%s", f"{event}: {detail}" if detail else event, extra={"task": task})


class AgentLogHandler(logging.Handler):
    """Writes log records to the agent's own log: after the time that the log adds, the level, the task and the message.

    A record may have the short name of a task as its attribute `task`. Each line of a traceback is a line of the log.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._lines = LineLog(path)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record."""
        task = getattr(record, "task", None)
        text = f"{record.levelname:<7} {f'{task} ' if task else ''}{self.format(record)}\n"
        self._lines.append(text.encode(errors="backslashreplace"), record.created)


class LogCollector(HelperProcess):
    """Keeps a log writer process running as long as there are tasks.

    A log writer that a signal has stopped is killed: the log buffers would grow without bound. The amount of data in
    the buffers is no suitable criterion: just as much waits for a healthy log writer while a task prints at full speed
    or while the disk is full, and restarting it would not help then.
    """

    outlives_agent = True
    restarts = True

    def __init__(self, title: str, folder: StateDir) -> None:
        super().__init__(title)
        self._folder = folder
        self._limits = LogLimits()

    def start(self, limits: LogLimits) -> None:
        """Start the log writer with some limits, and restart it whenever it exits.

        It is forked in the next iteration of the event loop, so that tasks that are about to be forked go first. If the
        log writer runs with other limits, it is restarted.
        """
        if self.process is None:
            self._limits = limits
            self.start_later(0.0)
        elif limits != self._limits:
            self._limits = limits
            self.kill()

    def handle_start(self) -> None:
        """Let it begin: the next agent's log writer ends it."""
        self.release()

    def run(self, agent: socket.socket) -> None:
        """Write the logs, in the process."""
        folder, limits = self._folder, self._limits
        log_writer.run(folder.log_buffers, folder.logs, limits.size, limits.count, folder.journal.path, agent)

    def stop(self) -> None:
        """Kill the log writer, move the tasks' last output into the logs and remove the log buffers."""
        super().stop()
        if self._folder.log_buffers.exists():
            with contextlib.suppress(OSError):  # a full disk must not prevent the cluster from shutting down
                LogWriter(self._folder.log_buffers, self._folder.logs, self._limits.size, self._limits.count).close()
