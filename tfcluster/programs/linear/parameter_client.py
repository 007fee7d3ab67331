"""The chief's client of the parameter servers: initialize, read, snapshot and restore the variables, with retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.api import Context
from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.model import StateGraph
from tfcluster.programs.scheduler import StepScheduler
from tfcluster.programs.sessions import (
    SERVER_LOST,
    check_listening,
    close,
    is_serving,
    leak,
    open_session,
    short_task,
)

#: Errors which mean that a server is down or has been restarted, and not that the graph or the data are wrong. A
#: restarted server has no variables any more. gRPC reports a connection that ends in the middle of a message as an
#: internal or an unknown error.
LOSSES = (
    *SERVER_LOST,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)

Values = dict[str, Any]


class ParameterClient:
    """A client of the parameter servers. Thread-safe.

    Its session uses the servers only, so the loss of a worker does not affect it. A call while a server is down waits
    for up to `PARAMETER_RECOVERY_SECONDS` until the server has recovered, and then raises ClusterError.

    `snapshot` is every variable's value when the variables were last read. A lost server is restored from it, and the
    scheduler is rolled back.
    """

    def __init__(self, config: TrainingConfig, state: StateGraph, scheduler: StepScheduler) -> None:
        self._context = config.context
        self._servers = config.roles.servers
        self._scheduler = scheduler
        self._state = state
        self._lock = threading.Lock()
        self._session: Any = None
        self._read_at = time.monotonic()
        self.snapshot: Values = {}

    def initialize(self, values: Values | None) -> None:
        """Set the variables to the values of a checkpoint, or to their initial values if there are none."""
        with self._lock:
            self._retry(lambda: self._start(values))

    def read(self) -> Values:
        """Return every variable's current value, after restoring lost variables."""
        with self._lock:
            self._retry(self._restore_and_read)
            return self.snapshot

    def restore_lost(self) -> None:
        """Wait until every variable has a value, restoring the snapshot if a server was restarted without variables."""
        with self._lock:
            self._retry(self._restore_lost)

    def close(self) -> None:
        """Close the session, so that its servers free the graph."""
        with self._lock:
            close(self._session)
            self._session = None

    def _start(self, values: Values | None) -> None:
        if values is None:
            self._session.run(self._state.initialize)
        else:
            self._state.set(self._session, values)
        self._read()

    def _restore_and_read(self) -> None:
        # Both are one action for the retry: a server that is lost in between is restarted without variables, and must
        # be restored before it is read.
        self._restore_lost()
        self._read()

    def _read(self) -> None:
        self.snapshot = self._session.run(self._state.values)
        self._read_at = time.monotonic()

    def _restore_lost(self) -> None:
        is_lost = self._session.run(self._state.uninitialized)
        servers = dict.fromkeys(short_task(self._state.devices[name]) for name in is_lost if is_lost[name])
        if not servers:
            return
        self._state.set(self._session, self.snapshot)
        step = int(self.snapshot["global_step"])
        self._scheduler.rollback(step)
        age = time.monotonic() - self._read_at
        self._context.notes.append(
            f"{' and '.join(servers)} lost the variables; the training went on from step {step:,}, {age:.1f} s earlier"
        )

    def _retry(self, action: Callable[[], None]) -> None:
        """Run an action that uses the session; retry it in a new session until it succeeds or the retries time out."""
        deadline: float | None = None
        while True:
            try:
                if self._session is None:
                    self._session = connect(self._context, self._state.graph, self._servers)
                action()
                return
            except LOSSES as error:
                leak(self._session)
                self._session = None
                deadline = deadline or time.monotonic() + settings.PARAMETER_RECOVERY_SECONDS
                if time.monotonic() >= deadline:
                    raise self._timeout_error() from error
                time.sleep(settings.PARAMETER_RETRY_SECONDS)

    def _timeout_error(self) -> ClusterError:
        unresponsive = [short_task(server) for server in self._servers if not is_responsive(self._context, server)]
        names = " and ".join(unresponsive) or short_task(self._servers[0])
        return ClusterError(
            f"{names} with the variables did not come back within {settings.PARAMETER_RECOVERY_SECONDS:.0f} s",
            hint="`tfcluster status` shows the tasks, `tfcluster events` what happened. With --logdir the next run "
            "goes on from the last checkpoint.",
        )


def connect(context: Context, graph: tf.Graph, devices: Sequence[str]) -> Any:
    """Open a session on the tasks of some devices; raise ConnectionError if one does not accept connections.

    The task of the first device is the session's master.
    """
    for device in devices:
        if not _is_listening(context, device):
            raise ConnectionError(f"nothing listens at {short_task(device)}")
    return open_session(context, graph, devices, timeout_ms=settings.PARAMETER_CALL_TIMEOUT_MS)


def is_responsive(context: Context, device: str) -> bool:
    """Return whether the server of a device's task accepts connections and completes an empty step in time."""
    timeout_ms = settings.PARAMETER_CALL_TIMEOUT_MS // 4
    return _is_listening(context, device) and is_serving(context, device, timeout_ms)


def _is_listening(context: Context, device: str) -> bool:
    try:
        check_listening(context, device, settings.PARAMETER_CONNECT_SECONDS)
    except OSError:
        return False
    return True
