"""TensorFlow sessions on the cluster: device filters, timeouts, and lost servers."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from tfcluster.core.devices import not_ready, task_of
from tfcluster.core.text import summarize_error
from tfcluster.errors import ClusterError
from tfcluster.programs import settings
from tfcluster.programs.context import current_run

# Sessions of lost servers, kept deliberately. To close one, or to let it be garbage-collected, blocks on a server that
# hangs (SIGSTOP), and does not end the call in progress either. Their connections are closed when the driver exits.
_leaked: list[Any] = []

#: Errors which mean that a server is down or has been restarted, and not that the computation is wrong.
SERVER_LOST = (
    ConnectionError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

# What is reported when a host, or the network to it, is lost; Python has no ConnectionError for these. A host whose
# name is not found has been found before: it is a pod that is being replaced, or the name server does not answer.
_NETWORK_LOST = {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
_NETWORK_LOST |= {socket.EAI_AGAIN, socket.EAI_NONAME}


def find_physical_devices() -> None:
    """Have TensorFlow look for this process's physical devices, so that its forked children do not.

    If no GPU is visible, it prints a line about `cuInit`. No eager context is created.
    """
    pywrap_tfe.TF_ListPhysicalDevices()


def short_task(device: str) -> str:
    """Return the short name of a device's task, such as `worker:1`."""
    parts = dict(part.split(":", 1) for part in device.strip("/").split("/"))
    return f"{parts['job']}:{parts['task']}"


@contextlib.contextmanager
def run_graph() -> Iterator[tf.Graph]:
    """Yield a graph whose variables are in the run's own resource container, so that concurrent runs share none.

    When the run has ended for any reason, the agent clears the container on every task. The graph's operations are in a
    name scope of the run, which distinguishes them from those that TensorFlow adds.
    """
    graph, run = tf.Graph(), current_run().run
    with graph.as_default(), graph.container(run), graph.name_scope(run):
        yield graph


def open_session(
    graph: tf.Graph,
    devices: Iterable[str],
    *,
    as_written: bool = False,
    optimized: bool = True,
    timeout_ms: int | None = None,
) -> Any:
    """Open a session on the tasks of some devices; the task of the first one is the session's master.

    Device filters restrict the session to these tasks. Without them a session would wait for every task of the cluster,
    including those that it does not use. A call that takes longer than `timeout_ms`, by default `STEP_TIMEOUT_MS`,
    raises DeadlineExceededError. See `session_config` for `as_written` and `optimized`.
    """
    tasks = list(dict.fromkeys(task_of(device) for device in devices))
    config = session_config(as_written=as_written, optimized=optimized)
    config.device_filters.extend(tasks)
    config.operation_timeout_in_ms = settings.STEP_TIMEOUT_MS if timeout_ms is None else timeout_ms
    return tf.compat.v1.Session(f"grpc://{address_of(tasks[0])}", graph=graph, config=config)


class ServerSession:
    """A session on some devices' tasks, which opens when needed, even after a loss; see `open_session`. Thread-safe."""

    def __init__(self, graph: tf.Graph, devices: Sequence[str], **options: Any) -> None:
        self._graph = graph
        self._devices = devices
        self._options = options
        self._lock = threading.Lock()
        self._session: Any = None
        self._is_closed = False

    def open(self) -> Any:
        """Return TensorFlow's session; one of `SERVER_LOST` is raised if a server is down."""
        with self._lock:
            if self._is_closed:
                raise ConnectionError("the session is closed")
            if self._session is None:
                self._check_tasks()
                connect = partial(open_session, self._graph, self._devices, **self._options)
                self._session = self.call(connect)
            return self._session

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what a call to the servers returns, or raise ConnectionError if one of them is down.

        The call has its own thread, and is left to it in this case: a call to a server that hangs (SIGSTOP) cannot
        be cancelled, as closing the session blocks too, and does not end the call.
        """
        outcome: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def make_call() -> None:
            try:
                outcome.put((function(), None))
            except Exception as error:  # raised again in the caller's thread
                outcome.put((None, error))

        threading.Thread(target=make_call, daemon=True).start()
        while True:
            try:
                value, error = outcome.get(timeout=settings.SESSION_SERVER_POLL_SECONDS)
            except queue.Empty:
                self._check_tasks()
                continue
            if error is not None:
                raise error
            return value

    def _check_tasks(self) -> None:
        for device in {task_of(device): device for device in self._devices}.values():
            check_listening(device)

    def forget(self, session: Any) -> bool:
        """Leave a session that lost a server, so that the next is a new one; return False if that was done before."""
        with self._lock:
            if self._session is not session:
                return False
            self._session = None
            _leaked.append(session)
            return True

    def close(self) -> None:
        """Close the session for good, which ends its steps in progress, and has the servers free its graph."""
        with self._lock:
            session, self._session = self._session, None
            self._is_closed = True
        if session is not None:
            with contextlib.suppress(tf.errors.OpError):  # the server is down
                session.close()


class WholeSession(ServerSession):
    """A session that needs the tasks of all its devices: it ends with an error if one of them is lost.

    A context manager, which opens and closes it. Raises ClusterError also if one of the tasks was not ready when the
    run began.
    """

    def __enter__(self) -> WholeSession:
        require_tasks(self._devices)
        return self

    def __exit__(self, *error: object) -> None:
        close_all([self], settings.SESSION_CLOSE_SECONDS)

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Call the `run` of TensorFlow's session."""
        return self._checked(lambda session: session.run(*arguments, **options))

    def list_devices(self) -> list[str]:
        """Return the full names of the devices of the session's tasks."""
        return [device.name for device in self._checked(lambda session: session.list_devices())]

    def _checked(self, function: Callable[[Any], Any]) -> Any:
        try:
            session = self.open()
            return self.call(lambda: function(session))
        except SERVER_LOST as error:
            tasks = ", ".join(dict.fromkeys(map(short_task, self._devices)))
            raise ClusterError(
                f"one of the tasks {tasks} was lost: {summarize_error(f'{type(error).__name__}: {error}')}",
                hint="`tfcluster events` shows what ended the task.",
            ) from error


def require_tasks(devices: Iterable[str]) -> None:
    """Raise an error if a task of these devices was not ready when the run began."""
    missing = current_run().missing
    if problems := dict.fromkeys(missing[task] for task in map(task_of, devices) if task in missing):
        raise not_ready(problems)


def close_all(sessions: Iterable[ServerSession], seconds: float) -> None:
    """Close sessions in parallel and with a timeout: closing never returns if a task's process is stopped (SIGSTOP)."""
    closing = [threading.Thread(target=session.close, daemon=True) for session in sessions]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(seconds)


def is_serving(device: str, timeout_ms: int) -> bool:
    """Return whether the task of a device accepts connections and completes an empty step in a new session in time."""
    try:
        check_listening(device)
    except OSError:
        return False
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=timeout_ms, device_filters=[task_of(device)])
    with tf.Graph().as_default():
        session = tf.compat.v1.Session(f"grpc://{address_of(device)}", config=config)
        try:
            session.run(tf.no_op())
        except tf.errors.OpError:
            _leaked.append(session)
            return False
    session.close()
    return True


def check_listening(device: str) -> None:
    """Check that a process listens at the address of a device's task.

    A session whose server died blocks until its timeout. One that is opened on a task that is down waits for gRPC's
    back-off even when the task has recovered. Raises ConnectionError if the connection is refused or not made in time,
    or the network to the host is lost or does not know its name; OSError if no attempt could be made, for example
    because the limit on open files is reached.
    """
    try:
        _connect(device).close()
    except OSError as error:
        # The kernel accepts connections for a process that is busy or stopped, and the limit allows for lost packets.
        is_lost = isinstance(error, (ConnectionError, TimeoutError)) or error.errno in _NETWORK_LOST
        if not is_lost:
            raise
        raise ConnectionError(f"nothing listens at {short_task(device)}") from error


def answers(device: str) -> bool:
    """Return whether the task of a device that was lost or late answers.

    A server sends its HTTP/2 settings as soon as a connection is accepted. One that hangs does not, nor does a
    forwarder, which accepts connections although the link to the task's host is lost.
    """
    try:
        with _connect(device) as connection:
            return bool(connection.recv(1))
    except OSError:
        return False


def address_of(device: str) -> str:
    """Return the `host:port` of a device's task."""
    job, task = task_of(device).split("/")[1:]
    return current_run().addresses[job.removeprefix("job:")][int(task.removeprefix("task:"))]


def _connect(device: str) -> socket.socket:
    host, _, port = address_of(device).rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), settings.SESSION_CONNECT_SECONDS)


def session_config(*, as_written: bool, optimized: bool = True) -> Any:
    """Return the ConfigProto of a session.

    `as_written` disables graph optimizations and enables soft placement: every operation runs on its device, or on its
    task's CPU if the task has no device of that type. Otherwise operations may be folded or fused, and a device that
    does not exist is an error. `optimized` has the servers optimize the graph before its first step. Leave this out for
    graphs that do little but call compiled functions: it takes each server longer than the rest of the first step, as
    the bodies of the functions are optimized too, which the compiler does by itself.
    """
    config = tf.compat.v1.ConfigProto(allow_soft_placement=as_written)
    if as_written:
        config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = as_written or not optimized
    return config
