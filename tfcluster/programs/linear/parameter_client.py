"""The variables on the parameter servers, as the run's chief sees them: made, looked at, and made again when lost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context
from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.model import StateGraph
from tfcluster.programs.linear.roles import short_task
from tfcluster.programs.linear.step_scheduler import StepScheduler
from tfcluster.programs.session import open_session

#: Seconds after which a task that does not come back is given up. An agent restarts one that died at once, one that
#: hangs after 12 s.
PATIENCE_SECONDS = 15.0
#: Milliseconds after which a call of a server counts as lost; a block of steps takes 300.
CALL_TIMEOUT_MS = 10_000
#: Seconds between two tries to reach it.
RETRY_SECONDS = 0.1

#: What says that a server is not there, or is another one than before, not that the graph or the data are wrong. A
#: connection that ends amid a message is an internal or an unknown error in gRPC's words.
LOSSES = (
    ConnectionError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)

Values = dict[str, Any]

_abandoned: list[Any] = []


class ParameterClient:
    """A session on the servers alone, whatever happens to workers; any thread may use it.

    Attributes:
        snapshot: Every variable's value when they were last read; what a server that was lost goes on from.
    """

    def __init__(self, plan: TrainingConfig, state: StateGraph, ledger: StepScheduler) -> None:
        self._context = plan.context
        self._servers = plan.servers
        self._ledger = ledger
        self._state = state
        self._lock = threading.Lock()
        self._session: Any = None
        self._read_at = time.monotonic()
        self.snapshot: Values = {}

    def initialise(self, values: Values | None) -> None:
        """Give the variables their first values, or those of a checkpoint.

        Raises:
            ClusterError: A server is not there.
        """
        with self._lock:
            self._until_servers_answer(lambda: self._start(values))

    def read(self) -> Values:
        """Every variable's value now; what was lost is restored first.

        Raises:
            ClusterError: A server is gone and does not come back.
        """
        with self._lock:
            self._until_servers_answer(self._restore_and_read)
            return self.snapshot

    def restore_what_is_lost(self) -> None:
        """Return when every variable has a value; a server that comes back empty gets those of the snapshot.

        Raises:
            ClusterError: A server is gone and does not come back.
        """
        with self._lock:
            self._until_servers_answer(self._restore_what_is_lost)

    def close(self) -> None:
        """Close the session, so that its servers forget the graph."""
        with self._lock:
            close(self._session)
            self._session = None

    def _start(self, values: Values | None) -> None:
        if values is None:
            self._session.run(self._state.initialise)
        else:
            self._state.set(self._session, values)
        self._read()

    def _restore_and_read(self) -> None:
        # As one: a server that is lost in between comes back empty, and is not read before it is restored.
        self._restore_what_is_lost()
        self._read()

    def _read(self) -> None:
        self.snapshot = self._session.run(self._state.values)
        self._read_at = time.monotonic()

    def _restore_what_is_lost(self) -> None:
        lost = self._session.run(self._state.lost)
        servers = dict.fromkeys(short_task(self._state.homes[name]) for name in lost if lost[name])
        if not servers:
            return
        self._state.set(self._session, self.snapshot)
        step = int(self.snapshot["global_step"])
        self._ledger.rollback(step)
        age = time.monotonic() - self._read_at
        self._context.notes.append(
            f"{' and '.join(servers)} lost the variables; the training went on from step {step:,}, {age:.1f} s earlier"
        )

    def _until_servers_answer(self, action: Any) -> None:
        """Do something in the session, in a new one where that fails, until it succeeds or patience ends."""
        deadline: float | None = None
        while True:
            try:
                if self._session is None:
                    check_listening(self._context, self._servers)
                    self._session = open_session(
                        self._context, self._state.graph, self._servers, timeout_ms=CALL_TIMEOUT_MS
                    )
                action()
                return
            except LOSSES as error:
                abandon(self._session)
                self._session = None
                deadline = deadline or time.monotonic() + PATIENCE_SECONDS
                if time.monotonic() >= deadline:
                    raise self._lost(error) from error
                time.sleep(RETRY_SECONDS)

    def _lost(self, error: Exception) -> ClusterError:
        silent = [short_task(server) for server in self._servers if not answers(self._context, server)]
        who = " and ".join(silent) or short_task(self._servers[0])
        return ClusterError(
            f"{who} with the variables did not come back within {PATIENCE_SECONDS:.0f} s",
            hint="`tfcluster status` shows the tasks, `tfcluster events` what happened. With --logdir the next run "
            "goes on from the last checkpoint.",
        )


def check_listening(context: Context, devices: Sequence[str]) -> None:
    """Return when the task of every device accepts connections.

    A session that is opened on a task that does not would have gRPC wait longer and longer before it dials again.

    Raises:
        ConnectionError: One does not.
    """
    for device in devices:
        if not _listens(_address(context, device)):
            raise ConnectionError(f"nothing listens at {short_task(device)}")


def abandon(session: Any) -> None:
    """Let go of a session that has failed, if there is one, without a word to its servers.

    Closing it, or having it collected, would wait for a server that hangs; the driver's end closes the connections.
    """
    if session is not None:
        _abandoned.append(session)


def close(session: Any) -> None:
    """Close a session, if there is one; its servers may be gone."""
    if session is not None:
        with contextlib.suppress(tf.errors.OpError):
            session.close()


def answers(context: Context, device: str) -> bool:
    """Whether the server of a device's task answers."""
    if not _listens(_address(context, device)):
        return False
    graph = tf.Graph()
    with graph.as_default(), tf.device(device):
        one = tf.constant(1)
    try:
        with open_session(context, graph, [device], timeout_ms=CALL_TIMEOUT_MS // 4) as session:
            session.run(one)
    except tf.errors.OpError:
        return False
    return True


def _address(context: Context, device: str) -> str:
    task = tf.DeviceSpec.from_string(device)
    address: str = context.addresses[task.job][task.task]
    return address


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
