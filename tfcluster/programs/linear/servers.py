"""The variables on the parameter servers, which are read, and restored after the loss of a server."""

from __future__ import annotations

import threading
import time
from typing import Any

import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.linear.model import StateGraph, TrainingConfig
from tfcluster.programs.sessions import SERVER_LOST, ServerSession, is_serving, short_task

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


class RolledBackError(Exception):
    """Raised when the variables were restored from the snapshot of a step."""

    def __init__(self, step: int) -> None:
        super().__init__(f"rolled back to step {step}")
        self.step = step


class TrainingSession(ServerSession):
    """A session on the tasks of some devices and on the parameter servers."""

    def __init__(self, config: TrainingConfig, graph: tf.Graph, *devices: str) -> None:
        timeout_ms = settings.PARAMETER_CALL_TIMEOUT_MS
        super().__init__(config.context, graph, [*devices, *config.roles.servers], timeout_ms=timeout_ms)

    def run(self, *arguments: Any) -> Any:
        """Call the `run` of TensorFlow's session; one of `LOSSES` is raised if a server is lost."""
        session = self.open()
        try:
            return self.call(lambda: session.run(*arguments))
        except LOSSES:
            self.forget(session)
            raise


class ParameterClient:
    """Reads all variables, and restores those of a lost server. Thread-safe.

    Its session uses the servers only, so the loss of a worker does not affect it.
    """

    def __init__(self, config: TrainingConfig, state: StateGraph, snapshot: Values) -> None:
        # Every variable's value as last read; before that, of the checkpoint to continue from, or nothing.
        self.snapshot = snapshot
        self.initialized = threading.Event()  # set when the variables have values
        self.session = TrainingSession(config, state.graph)
        self._config = config
        self._state = state
        self._lock = threading.Lock()
        self._read_at: float | None = None  # in monotonic seconds

    def read(self) -> Values:
        """Return every variable's value. If one has none, set all of them first, to the snapshot if there is one.

        Raises RolledBackError if a server was lost, and the variables have been restored from the snapshot;
        ClusterError if a server is still down after `PARAMETER_RECOVERY_SECONDS`.
        """
        deadline: float | None = None
        with self._lock:
            while True:
                try:
                    # Both are retried together: a server that is lost in between is restarted without variables, and
                    # must be restored before it is read.
                    self._set_lost_variables()
                    self.snapshot = self.session.run(self._state.values)
                    self._read_at = time.monotonic()
                    self.initialized.set()
                    return self.snapshot
                except LOSSES as error:
                    deadline = deadline or time.monotonic() + settings.PARAMETER_RECOVERY_SECONDS
                    if time.monotonic() >= deadline:
                        raise self._timeout_error() from error
                    time.sleep(settings.PARAMETER_RETRY_SECONDS)

    def _set_lost_variables(self) -> None:
        lost = [name for name, is_lost in self.session.run(self._state.uninitialized).items() if is_lost]
        if not lost:
            return
        if self.snapshot:
            self.session.run(
                self._state.assign, {self._state.inputs[name]: each for name, each in self.snapshot.items()}
            )
        else:
            self.session.run(self._state.initialize)
        if self._read_at is not None:  # they had values before
            step, age = int(self.snapshot["global_step"]), time.monotonic() - self._read_at
            servers = " and ".join(dict.fromkeys(short_task(self._state.devices[name]) for name in lost))
            self._config.context.notes.append(
                f"{servers} lost the variables; the training resumed from step {step:,}, {age:.1f} s earlier"
            )
            raise RolledBackError(step)

    def _timeout_error(self) -> ClusterError:
        servers = self._config.roles.servers
        unresponsive = [short_task(server) for server in servers if not is_responsive(self._config, server)]
        names = " and ".join(unresponsive) or short_task(servers[0])
        return ClusterError(
            f"{names} with the variables did not recover within {settings.PARAMETER_RECOVERY_SECONDS:.0f} s",
            hint="`tfcluster status` shows the tasks, `tfcluster events` what happened. With --logdir the next run "
            "resumes from the last checkpoint.",
        )


def is_responsive(config: TrainingConfig, device: str) -> bool:
    """Return whether a device's task completes an empty step in a fourth of a call's timeout."""
    return is_serving(config.context, device, settings.PARAMETER_CALL_TIMEOUT_MS // 4)
