"""A pool of sessions, one per task, to run a computation on each device: the loss of a task affects no other task."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import tensorflow as tf

from tfcluster.core.devices import task_of, without_replica
from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.context import current_run, devices_of_run
from tfcluster.programs.placements import run_placed
from tfcluster.programs.sessions import (
    SERVER_LOST,
    ServerSession,
    address_of,
    answers,
    close_all,
    is_serving,
    run_graph,
    short_task,
)
from tfcluster.programs.shards import DeviceLostError, ShardResult, StepTimeoutError, map_shards

Value = TypeVar("Value")


#: What a device computes in a step: its inputs, which are placeholders by the names in the `feed` of `SessionPool.run`,
#: and its outputs, which are tensors in any structure that a session can fetch.
Computation = tuple[Mapping[str, Any], Any]


class SessionPool:
    """Runs one computation on any of a run's devices. A context manager that closes its sessions on exit.

    Sessions are opened on first use, and reopened after their task was lost. The number of operations of each device is
    recorded in the run's `device_stats`, and the number of losses of each task in the run's notes.

    Args:
        build: Builds the computation; it is called with a default graph and a default device.
        devices: Full names of the devices; None for all of the run, also those that are ready late.
        as_written: Disable constant folding and other optimizations of the graph; see sessions.session_config.
        optimized: Whether the servers optimize the graph; without this, a graph of compiled functions starts sooner.
    """

    def __init__(
        self,
        build: Callable[[], Computation],
        devices: Sequence[str] | None = None,
        *,
        as_written: bool = False,
        optimized: bool = True,
    ) -> None:
        self._context = current_run()
        self.devices = devices_of_run() if devices is None else list(devices)
        self._joining = threading.Lock()
        self._is_closed = False
        by_task: dict[str, list[str]] = {}
        for device in self.devices:
            by_task.setdefault(task_of(device), []).append(device)
        # Tasks with the same devices share a graph, because the graph does not name the task.
        graphs: dict[tuple[str, ...], tuple[tf.Graph, dict[str, Computation]]] = {}
        self._tasks: dict[str, _Task] = {}
        for task, used in by_task.items():
            names = tuple(_within_task(device) for device in used)
            if names not in graphs:
                graphs[names] = _build_for_each(names, build)
            graph, computations = graphs[names]
            session = ServerSession(graph, used, as_written=as_written, optimized=optimized)
            self._tasks[task] = _Task(used, computations, session)

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        close_all([task.session for task in self._tasks.values()], settings.SESSION_CLOSE_SECONDS)
        for task in self._tasks.values():
            if task.losses:
                times = "" if task.losses == 1 else f" {task.losses} times"
                self._context.notes.append(f"{task.short_name} was lost{times}; its work in progress was done again")

    def run(self, device: str, feed: Mapping[str, Any]) -> Any:
        """Run the computation on a device and return its outputs; `feed` has the values of its inputs, by name.

        Raises:
            DeviceLostError: The device's task died or does not respond; the next call reconnects.
            StepTimeoutError: The step took longer than settings.STEP_TIMEOUT_MS, although the task responds to others.
            ClusterError: The sessions are closed.
        """
        if self._is_closed:
            raise ClusterError("the sessions are closed", hint="Iterate over `map` inside the `with` block.")
        return self._tasks[task_of(device)].run(device, feed)

    def map(
        self,
        step: Callable[[str, int, int], Value],
        shards: int,
        *,
        unit: str = "shards",
        work: Callable[[int], int] | None = None,
    ) -> Iterator[ShardResult[Value]]:
        """Run `step(device, first, count)` on all shards, on the devices in parallel, and yield the results.

        A step calls `run`, and handles the shards `first` … `first + count - 1`. Results come as they arrive.
        `map_shards` describes this and the errors. The work of each device becomes part of the run's result, and is
        shown as progress.

        Args:
            unit: The unit of the work, in the plural, such as `samples`.
            work: Returns the amount of work in the first shards, given their number; None to count the shards.
        """
        work = work or operator.index
        late = [device for device in self.devices if device in self._context.late_devices]
        ready = [device for device in self.devices if device not in late][:shards]
        done, total = 0, int(work(shards))
        for part in map_shards([*ready, *late], shards, step, late=late, answers=self._answers):
            amount = int(work(part.first + part.count) - work(part.first))
            stats = self._context.stats_of(part.device)
            stats[unit] = stats.get(unit, 0) + amount
            done += amount
            self._context.progress(done, total, unit)
            yield part

    def _answers(self, device: str) -> bool:
        """Return whether the task of a device answers; if it was late, a note says that it joins the run."""
        if not answers(device):
            return False
        note = f"{short_task(device)} answers now, and has joined the run"
        with self._joining:
            if device in self._context.late_devices and note not in self._context.notes:
                self._context.notes.append(note)
        return True


def _build_for_each(names: Sequence[str], build: Callable[[], Computation]) -> tuple[tf.Graph, dict[str, Computation]]:
    """Return a graph with a copy of the computation for each device, by the device's name within its task."""
    computations = {}
    with run_graph() as graph:
        for name in names:
            with tf.device(name):
                computations[name] = build()
    return graph, computations


class _Task:
    """One task, whose devices share a session."""

    def __init__(
        self,
        devices: Sequence[str],
        computations: Mapping[str, Computation],
        session: ServerSession,
    ) -> None:
        self.session = session
        self.short_name = short_task(devices[0])
        self.losses = 0
        self._is_lost = False
        self._computations = computations
        self._uncounted = set(devices)
        self._address = address_of(devices[0])

    def run(self, device: str, feed: Mapping[str, Any]) -> Any:
        inputs, outputs = self._computations[_within_task(device)]
        fed = {inputs[name]: value for name, value in feed.items()}
        try:
            session = self.session.open()
        except SERVER_LOST as error:
            self._count_loss()
            raise self._lost_error(error, worked=False) from error
        try:
            values = self.session.call(lambda: self._step(session, device, outputs, fed))
        except SERVER_LOST as error:
            is_timeout = isinstance(error, tf.errors.DeadlineExceededError)
            if is_timeout and is_serving(device, settings.SERVER_CHECK_TIMEOUT_MS):
                raise StepTimeoutError(settings.STEP_TIMEOUT_MS / 1000) from error
            if self.session.forget(session):
                self._count_loss()
            raise self._lost_error(error, worked=True) from error
        self._is_lost = False
        return values

    def _step(self, session: Any, device: str, outputs: Any, feed: Mapping[Any, Any]) -> Any:
        if device not in self._uncounted:
            return session.run(outputs, feed)
        values, placed = run_placed(session.graph, session.run, outputs, feed)
        self._uncounted.discard(device)
        current_run().stats_of(device)["ops"] = list(placed.values()).count(without_replica(device))
        return values

    def _count_loss(self) -> None:
        """Count a loss once, no matter how many retries fail."""
        self.losses += not self._is_lost
        self._is_lost = True

    def _lost_error(self, error: Exception, *, worked: bool) -> DeviceLostError:
        problem = "cannot be reached" if isinstance(error, ConnectionError) else "no longer serves this run"
        return DeviceLostError(f"{self.short_name} at {self._address} {problem}", worked=worked)


def _within_task(device: str) -> str:
    """Return a device's name within its task, such as `/device:CPU:0`."""
    return device[device.index("/device:") :]
