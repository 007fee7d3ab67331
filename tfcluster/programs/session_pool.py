"""A pool of sessions, one per task, to run a computation on each device: the loss of a task affects no other task."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import tensorflow as tf

from tfcluster.programs import settings
from tfcluster.programs.api import Context
from tfcluster.programs.executor import DeviceLostError, StepTimeoutError
from tfcluster.programs.sessions import (
    SERVER_LOST,
    check_listening,
    close,
    count_operations,
    is_serving,
    leak,
    open_session,
    run_graph,
    short_task,
    task_of,
    without_replica,
)


@dataclass(frozen=True)
class Computation:
    """The inputs and outputs of what a device computes in a step.

    Attributes:
        inputs: Placeholders, by the names used in the `feed` of `SessionPool.run`.
        outputs: Tensors, in any structure that a session can fetch.
    """

    inputs: Mapping[str, Any]
    outputs: Any

    def with_input(self, name: str, placeholder: Any) -> Computation:
        """Return a copy with one more input."""
        return Computation({**self.inputs, name: placeholder}, self.outputs)


class SessionPool:
    """Runs one computation on any of a run's devices. A context manager that closes its sessions on exit.

    Sessions are opened on first use, and reopened after their task was lost. The number of operations of each device is
    recorded in the run's `device_stats`, and the number of losses of each task in the run's notes.

    Args:
        devices: Full names of the devices.
        build: Builds the computation; it is called with a default graph and a default device.
        as_written: Disable constant folding and other optimizations of the graph; see sessions.session_config.
        optimized: Whether the servers optimize the graph; without this, a graph of compiled functions starts sooner.
    """

    def __init__(
        self,
        context: Context,
        devices: Sequence[str],
        build: Callable[[], Computation],
        *,
        as_written: bool = False,
        optimized: bool = True,
    ) -> None:
        connect = partial(open_session, as_written=as_written, optimized=optimized)
        self._context = context
        by_task: dict[str, list[str]] = {}
        for device in devices:
            by_task.setdefault(task_of(device), []).append(device)
        # Tasks with the same devices share a graph, because the graph does not name the task.
        graphs: dict[tuple[str, ...], _Graph] = {}
        self._tasks: dict[str, _Task] = {}
        for task, used in by_task.items():
            names = tuple(_within_task(device) for device in used)
            if names not in graphs:
                graphs[names] = _Graph(context, names, build)
            self._tasks[task] = _Task(context, used, graphs[names], connect)

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Close in parallel and with a timeout: closing ends the steps in progress, but never returns if the task's
        # process is stopped (SIGSTOP).
        closing = [threading.Thread(target=task.close, daemon=True) for task in self._tasks.values()]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(settings.SESSION_CLOSE_SECONDS)
        for task in self._tasks.values():
            if task.losses:
                times = "" if task.losses == 1 else f" {task.losses} times"
                self._context.notes.append(f"{task.short_name} was lost{times}; what it had under way was done again")

    def run(self, device: str, feed: Mapping[str, Any]) -> Any:
        """Run the computation on a device and return its outputs.

        Args:
            device: Full name of one of the devices.
            feed: Values of the computation's inputs, by name.

        Raises:
            DeviceLostError: The device's task died or does not respond; the next call reconnects.
            StepTimeoutError: The step took longer than settings.STEP_TIMEOUT_MS, although the task responds to others.
        """
        return self._tasks[task_of(device)].run(device, feed)


class _Graph:
    """A graph with one copy of the computation for each device of a task, by the device's name within its task."""

    def __init__(self, context: Context, names: Sequence[str], build: Callable[[], Computation]) -> None:
        self.computations = {}
        with run_graph(context) as self.graph:
            for name in names:
                with tf.device(name):
                    self.computations[name] = build()


class _Task:
    """The session of one task."""

    def __init__(
        self,
        context: Context,
        devices: Sequence[str],
        graph: _Graph,
        connect: Callable[[Context, Any, Sequence[str]], Any],
    ) -> None:
        spec = tf.DeviceSpec.from_string(devices[0])
        self.short_name = short_task(devices[0])
        self.losses = 0
        self._is_lost = False
        self._address = context.addresses[spec.job][spec.task]
        self._context = context
        self._devices = devices
        self._computations = graph.computations
        self._open_session = partial(connect, context, graph.graph, devices)
        self._lock = threading.Lock()
        self._session: Any = None
        self._uncounted = set(devices)

    def run(self, device: str, feed: Mapping[str, Any]) -> Any:
        """Run the computation as `SessionPool.run` describes."""
        computation = self._computations[_within_task(device)]
        feed = {computation.inputs[name]: value for name, value in feed.items()}
        session = self._open()
        try:
            values = self._call_server(lambda: self._step(session, device, computation.outputs, feed))
        except SERVER_LOST as error:
            if isinstance(error, tf.errors.DeadlineExceededError) and self._is_responsive():
                raise StepTimeoutError(settings.STEP_TIMEOUT_MS / 1000) from error
            with self._lock:
                if self._session is session:
                    self._session = None
                    leak(session)
                    self._count_loss()
            raise DeviceLostError(self._describe(error), worked=True) from error
        self._is_lost = False
        return values

    def close(self) -> None:
        """Close the session, which ends its steps in progress."""
        with self._lock:
            session, self._session = self._session, None
        close(session)

    def _open(self) -> Any:
        with self._lock:
            if self._session is None:
                try:
                    self._check_server()
                    self._session = self._call_server(self._open_session)
                except SERVER_LOST as error:
                    self._count_loss()
                    raise DeviceLostError(self._describe(error), worked=False) from error
            return self._session

    def _step(self, session: Any, device: str, outputs: Any, feed: Mapping[Any, Any]) -> Any:
        if device not in self._uncounted:
            return session.run(outputs, feed)
        metadata = tf.compat.v1.RunMetadata()
        values = session.run(outputs, feed, tf.compat.v1.RunOptions(output_partition_graphs=True), metadata)
        self._uncounted.discard(device)
        self._context.stats_of(device)["ops"] = count_operations(metadata).get(without_replica(device), 0)
        return values

    def _call_server(self, call: Callable[[], Any]) -> Any:
        """Run a call to the server in a thread, and check meanwhile that the server is up.

        If the server is down, raise ConnectionError and leave the call to its thread. Each call has a thread of its
        own, because a call to a server that hangs (SIGSTOP) cannot be cancelled: closing the session blocks too, and
        does not end the call.
        """
        outcome: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def make_call() -> None:
            try:
                outcome.put((call(), None))
            except Exception as error:  # raised again in the caller's thread
                outcome.put((None, error))

        threading.Thread(target=make_call, daemon=True).start()
        while True:
            try:
                value, error = outcome.get(timeout=settings.SESSION_SERVER_POLL_SECONDS)
            except queue.Empty:
                self._check_server()
                continue
            if error is not None:
                raise error
            return value

    def _is_responsive(self) -> bool:
        """Return whether the task responds to another session, after a step timed out."""
        try:
            return bool(
                self._call_server(lambda: is_serving(self._context, self._devices[0], settings.SERVER_CHECK_TIMEOUT_MS))
            )
        except ConnectionError:
            return False

    def _count_loss(self) -> None:
        """Count a loss once, no matter how many retries fail."""
        self.losses += not self._is_lost
        self._is_lost = True

    def _check_server(self) -> None:
        """Check that a process listens at the task's address; raise ConnectionError if the connection is refused.

        A server that is slow to accept counts as up.
        """
        with contextlib.suppress(TimeoutError):
            check_listening(self._context, self._devices[0], settings.SESSION_CONNECT_SECONDS)

    def _describe(self, error: Exception) -> str:
        problem = "is gone" if isinstance(error, ConnectionError) else "does not serve this run any more"
        return f"{self.short_name} at {self._address} {problem}"


def _within_task(device: str) -> str:
    """Return a device's name within its task, such as `/device:CPU:0`."""
    return device[device.index("/device:") :]
