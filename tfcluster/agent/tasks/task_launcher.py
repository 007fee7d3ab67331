"""Forks or adopts the processes of tasks, watches them until they exit and reserves the tasks' ports."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.state.secret_store import missing_secrets
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.tasks.resource_usage import OomDetector
from tfcluster.agent.tasks.state_machine import TaskEvent
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TaskState
from tfcluster.core.status import NOT_STARTED, LastExit
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import ProcessHandle, format_exit_status, was_killed
from tfcluster.processes.logs.log_buffer import prepare
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.processes.servers.tf_server import serve
from tfcluster.protocol.codec import Message


class StartBlockedError(Exception):
    """A task cannot be started now, but may be later; the message says why."""


class TaskLauncher:
    """Launches the processes of tasks.

    Args:
        load: Loads TensorFlow and returns it.
        dispatch: Dispatches the exit of a process to the task's state machine.
        serves: Called when a task's process reports that it serves.
    """

    def __init__(
        self,
        folder: StateDir,
        ports: PortAllocator,
        load: Callable[[], TensorFlow],
        dispatch: Callable[[TaskRuntime, TaskEvent], None],
        serves: Callable[[TaskRuntime], None],
        network: ClusterNetwork,
    ) -> None:
        self._folder = folder
        self._ports = ports
        self._load = load
        self._dispatch = dispatch
        self._serves = serves
        self._network = network
        self._port_owners: dict[int, tuple[float, str]] = {}  # by port: time of the lookup, and the message

    def fork(self, task: TaskRuntime, topology: ClusterTopology) -> subprocesses.ChildProcess | None:
        """Fork a task's server, which waits until it is released by a first message.

        If TensorFlow cannot be loaded, the task counts as one that died and is retried according to its restart policy.
        If the values of the task's secrets are lost, the task fails without a retry.

        Return the process, or None if none was forked.

        Raises:
            StartBlockedError: Another process uses the task's port, or the system has no process, memory or disk space
                left.
        """
        if names := missing_secrets(task.spec):
            task.startup_error = (
                f"secret {', '.join(names)} is lost, no journal holds it: `tfcluster up SPEC` gives it again"
            )
            asyncio.get_running_loop().call_soon(self._record_failure, task)
            return None
        self._reserve_free_port(task)
        try:
            self._network.find(topology.network)
            child = self._fork(task, topology)
        except OSError as error:
            raise StartBlockedError(explain(error, self._folder.path)) from error
        except ClusterError as error:
            task.startup_error = f"no process could be started for it: {error}"
            asyncio.get_running_loop().call_soon(self._record_exit, task, None)
            return None
        task.started, task.generation = time.time(), topology.generation
        task.startup_error = ""
        task.killed = False
        self._set_process(task, child.process, child.pidfd)
        child.on_message(partial(self._on_message, task), lambda: None)
        return child

    def _fork(self, task: TaskRuntime, topology: ClusterTopology) -> subprocesses.ChildProcess:
        try:
            self._folder.repair()  # the task's log is written to this directory
        except ClusterError as error:
            raise StartBlockedError(explain(error, self._folder.path)) from error
        log_buffer = self._folder.log_buffer_of(task.spec.short)
        prepare(log_buffer, self._folder.log_of(task.spec.short))
        body = partial(serve, self._load(), topology, task.spec, log_buffer)
        released = partial(self._run_released, body)
        return subprocesses.fork_child(released, partial(self._on_exit, task), self._network.enter)

    def _run_released(self, body: Callable[[socket.socket], None], agent: socket.socket) -> None:
        """Run the body of a task's process when the agent releases it, which it does by a message.

        If the agent dies before that, no later agent might know of the process, so it exits.
        """
        if agent.recv(1):
            body(agent)
        elif (process := ProcessHandle.from_pid(os.getpid())) is not None:
            self._folder.journal.note_unreleased(process)

    def _reserve_free_port(self, task: TaskRuntime) -> None:
        """Reserve a task's port for the task; raise a StartBlockedError if another process uses it."""
        port = task.spec.port
        if port is None:
            return
        try:
            if self._ports.reserve(port):
                self._port_owners.pop(port, None)
                return
        except OSError:  # if descriptors are scarce the server needs them more; other errors it reports itself
            return
        # Finding the owner of the port requires a scan of the descriptors of all processes, so the result is cached.
        now = time.monotonic()
        if port not in self._port_owners or now > self._port_owners[port][0] + settings.PORT_OWNER_CACHE_SECONDS:
            self._port_owners[port] = now, f"port {port} is taken by {self._ports.owner(port)}"
        raise StartBlockedError(self._port_owners[port][1])

    def watch(self, task: TaskRuntime, process: ProcessHandle) -> None:
        """Watch a process that an earlier agent has forked for a task.

        Raises:
            OSError: No file descriptor is left for a pidfd.
        """
        self._set_process(task, process, subprocesses.watch_exit(process, partial(self._on_exit, task)))

    def _set_process(self, task: TaskRuntime, process: ProcessHandle, pidfd: int | None) -> None:
        task.process, task.pidfd = process, pidfd
        task.memory = OomDetector(process.pid, time.monotonic())

    def _on_message(self, task: TaskRuntime, message: Message) -> None:
        if "error" in message:
            task.startup_error = message["error"]
        else:
            self._serves(task)

    def reserve_port(self, task: TaskRuntime) -> None:
        """Reserve a task's port, and only lock it while an adopted server listens on it."""
        if task.spec.port is None:
            return
        with suppress(OSError):  # if descriptors are scarce, the server needs them more
            if task.process is None:
                self._ports.reserve(task.spec.port)
            else:
                self._ports.lock(task.spec.port)

    def _on_exit(self, task: TaskRuntime, status: int | None) -> None:
        oom_note = ""
        if task.memory is not None and not task.killed and was_killed(status):
            oom_note = task.memory.describe()
        task.clear_process()
        if status is None:
            task.startup_error = task.startup_error or "its exit status is not known: an earlier agent had started it"
        # Defer this: the process's own error report may not have been read yet when its exit is noticed.
        asyncio.get_running_loop().call_soon(self._record_exit, task, status, oom_note)
        if task.machine.desired_running:
            self.reserve_port(task)  # immediately, because no process listens on it now

    def _record_failure(self, task: TaskRuntime) -> None:
        task.last_exit = LastExit(NOT_STARTED, time.time(), task.startup_error)
        self._dispatch(task, TaskEvent.UNSTARTABLE)

    def _record_exit(self, task: TaskRuntime, status: int | None, oom_note: str = "") -> None:
        is_stopping = task.machine.state is TaskState.STOPPING
        reason = format_exit_status(status) + oom_note
        task.last_exit = LastExit(reason, time.time(), task.startup_error, expected=is_stopping)
        clean = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        self._dispatch(task, TaskEvent.CLEAN_EXIT if clean else TaskEvent.FAILED_EXIT)


def explain(error: OSError | ClusterError, folder: Path) -> str:
    """Return why a file could not be written, or no process could be forked.

    Of a ClusterError, its cause counts. `folder` is the folder of the file, unless the error names another one.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError) or cause.errno is None:
        return str(error)
    if cause.filename:
        folder = Path(cause.filename).parent
    texts = {
        errno.ENOSPC: f"the disk of {folder} is full",
        errno.EDQUOT: f"the disk quota for {folder} is used up",
        errno.EROFS: f"the disk of {folder} is read-only",
        errno.ENOMEM: "the system has no memory left",
        errno.EAGAIN: "no more processes are allowed (`ulimit -u`, or pids.max of the cgroup)",
    }
    place = f"{cause.filename}: " if cause.filename else ""
    text = texts.get(cause.errno, f"{place}{cause.strerror}")
    return f"{text} ({errno.errorcode.get(cause.errno, cause.errno)})"
