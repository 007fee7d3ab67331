"""TaskSupervisor of this host's tasks: starts, stops, restarts and adopts them, and writes the cluster to the journal.

What becomes of a task is decided by its state machine (`machine`); what the supervisor does then, in `dispatch`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.event_loop import BackgroundTasks, ChangeNotifier
from tfcluster.agent.logs.cluster_logs import EventLog, LogCollector
from tfcluster.agent.meters import ProcessMeter
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.state.journal import Record, TaskRecord
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome, ProbeResult, with_reason
from tfcluster.agent.tasks.machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.transitions import TaskRuntime, Transition, drop_unreleased, restore
from tfcluster.core.devices import Device
from tfcluster.core.secrets import without_values
from tfcluster.core.states import HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.status import NOT_STARTED, LastExit
from tfcluster.core.topology import PS_JOB, ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import ProcessHandle, format_exit_status, is_stopped_by_signal, send_signal, was_killed
from tfcluster.os.procfs import OomDetector
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.logs.log_buffer import prepare
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.processes.servers.tf_server import serve
from tfcluster.protocol.codec import Message
from tfcluster.tf_install import find_tensorflow_library
from tfcluster.version import PROTOCOL

_logger = logging.getLogger(__name__)


class StartBlockedError(Exception):
    """A task cannot be started now, but may be later; the message says why."""


class TaskSupervisor:
    """Supervises the tasks of one cluster on this host."""

    def __init__(
        self,
        host: str,
        folder: StateDir,
        secrets: SecretStore,
        ports: PortAllocator,
        prober: ProbeClient,
        log_collector: LogCollector,
        network: ClusterNetwork,
    ) -> None:
        self.host = host
        self.topology: ClusterTopology | None = None  # the topology of the whole cluster; None until there is one
        # The topology that will replace `topology` once some tasks have stopped; None if no change is in progress.
        self.next: ClusterTopology | None = None
        self.up_since: float | None = None  # the Unix time when `apply` started the cluster; None if it is not known
        self.tasks: dict[str, TaskRuntime] = {}  # the cluster's tasks on this host, by name
        self.changed = ChangeNotifier()  # notified whenever a task's state changes
        self.history = EventLog(folder.events)
        self.journal_obstacle = ""  # why the last snapshot could not be written; empty if it was
        self.tensorflow: TensorFlow | None = None  # the C library, from the first call of `load_tensorflow` on
        self._folder = folder
        self._secrets = secrets
        self._ports = ports
        self._prober = prober
        self._log_collector = log_collector
        self._network = network
        self._port_owners: dict[int, tuple[float, str]] = {}  # by port: time of the lookup, and the message
        self._background = BackgroundTasks()

    def require_cluster(self) -> ClusterTopology:
        """Return the topology of the cluster; raise a ClusterError if there is none."""
        if self.topology is None:
            raise ClusterError(
                f"cluster {self._folder.path.parent.name!r} is not running",
                hint="Start it with `tfcluster up`.",
                exit_code=ExitCode.NOT_RUNNING,
            )
        return self.topology

    def apply(self, topology: ClusterTopology, start: Iterable[str], event: str, detail: str) -> None:
        """Replace the current topology, if any, by a new one, and start tasks of it; the event log gets an event.

        The journal is written once, with the new topology and the new processes. An agent that dies before that leaves
        the old cluster. An agent that dies after that leaves the new cluster, and the next agent starts the tasks that
        this one has not started.

        Every port of the topology is allocated already. Tasks that it removes or changes must be stopped or failed.
        Raises ClusterError: the journal cannot be written; everything is as before.
        """
        before = self.topology, self.next, self.tasks
        saved = [(task, task.save()) for task in self.tasks.values()]
        self._set_topology(topology)
        self.next = None
        transitions = [self._make_transition(self.tasks[name], TaskEvent.START) for name in start]
        try:
            self.write_journal()
        except ClusterError:
            self.topology, self.next, self.tasks = before
            for each in transitions:
                each.undo()
                self._set_timer(each.task)  # one that waits for another attempt would be started later
            for task, earlier in saved:
                task.restore(earlier)
            raise
        self.history.record(event, detail=detail)
        if event == "up":
            self.up_since = time.time()
        self._publish(transitions)

    async def adopt(self, record: Record) -> None:
        """Adopt the tasks in the journal of an earlier agent: watch those that still run, restart others by policy.

        The method returns after every task that still runs has been probed.
        """
        self._set_topology(self._secrets.restore(record.topology, record.secrets))
        if record.next is not None:
            self.next = self._secrets.restore(record.next, record.secrets)
        events = [
            (self.tasks[name], event)
            for name, each in record.tasks.items()
            if (event := self._restore_task(self.tasks[name], each)) is not None
        ]
        # Dispatch all events together: a journal written between two of them would lack the processes of later tasks.
        self.dispatch(events)
        for task in self.tasks.values():
            if task.process is not None and task.pidfd is not None:
                self.history.record("adopted", task=task.spec.short, detail=f"pid {task.process.pid}")
        with suppress(ClusterError, OSError):  # the earlier agent's journal stays, until the disk has room again
            self.write_journal()  # without the changes that the earlier agent appended
            if record.secrets != self._secrets.path:  # the earlier agent had another XDG_RUNTIME_DIR
                record.secrets.unlink(missing_ok=True)
        await asyncio.gather(*(self.check(task) for task in self.tasks.values() if task.pidfd is not None))

    def _restore_task(self, task: TaskRuntime, record: TaskRecord) -> TaskEvent | None:
        """Restore the state of a task from the journal, and watch its process if it has one.

        Return the event that must be dispatched to the task; None for no event.
        """
        record = drop_unreleased(record, self._folder.journal.unreleased)
        task.started, task.last_exit, task.generation = record.started, record.last_exit, record.generation
        probes = int(max(0.0, time.time() - record.started) / settings.HEALTH_RETRY_SECONDS)
        task.machine, event = restore(task.machine, record, time.monotonic(), probes)
        if record.process is not None:
            task.process = record.process
            task.pidfd = subprocesses.watch_exit(record.process, partial(self.on_exit, task))
            task.meter = ProcessMeter(record.process.pid)
            task.memory = OomDetector(record.process.pid, time.monotonic())
        if task.spec.port is not None:
            with suppress(OSError):  # if descriptors are scarce, the server needs them more
                if task.process is None:
                    self._ports.reserve(task.spec.port)
                else:  # its server listens on it
                    self._ports.lock(task.spec.port)
        self._set_timer(task)
        return event

    def generations(self) -> dict[str, int]:
        """Return, by task name, the topology generation in which each task that has a process was started."""
        return {name: task.generation for name, task in self.tasks.items() if task.process is not None}

    async def stop(self, grace: float, names: Collection[str] | None = None) -> None:
        """Stop tasks and wait until they have stopped. The ps stop last, because other tasks use their variables.

        `grace` is the time between SIGTERM and SIGKILL in seconds. `names` is None for all tasks. Raises ClusterError
        if SIGKILL has not ended all of them, when the others have stopped.
        """
        chosen = [task for name, task in self.tasks.items() if names is None or name in names]
        for task in chosen:
            task.machine = replace(task.machine, stop_timeout=grace)
        survivors: list[str] = []
        for ps in (False, True):
            tasks = [task for task in chosen if (task.spec.job == PS_JOB) is ps]
            self.dispatch([(task, TaskEvent.STOP) for task in tasks])
            deadline = time.monotonic() + grace + settings.KILL_SECONDS
            while waiting := [task for task in tasks if task.machine.state not in TERMINAL_STATES]:
                try:
                    async with asyncio.timeout(deadline - time.monotonic()):
                        await self.changed.wait_for_change(self.changed.count)
                except TimeoutError:
                    survivors += [f"{task.spec.short} (pid {task.process.pid})" for task in waiting if task.process]
                    break
                # A task may have been restarted meanwhile.
                self.dispatch([(task, TaskEvent.STOP) for task in tasks])
        if survivors:
            raise subprocesses.survivors_error(survivors, self.require_cluster().cluster)

    def shorten_grace(self, grace: float) -> None:
        """Limit the grace period of tasks that are being stopped, or will be stopped later.

        `grace` is the maximum number of seconds until SIGKILL, counted from now or from a later stop.
        """
        for task in self.tasks.values():
            task.machine = replace(task.machine, stop_timeout=min(task.machine.stop_timeout, grace))
        stopping = [task for task in self.tasks.values() if task.machine.state is TaskState.STOPPING]
        self.dispatch([(task, TaskEvent.STOP) for task in stopping])

    def restart(self, names: Iterable[str], grace: float) -> None:
        """Restart tasks, all at the same time: starting servers do not wait for each other.

        Tasks without a process are only started. `grace` is the time between SIGTERM and SIGKILL in seconds.
        """
        tasks = [self.tasks[name] for name in names]
        for task in tasks:
            task.machine = replace(task.machine, stop_timeout=grace)
        self.dispatch((task, TaskEvent.RESTART) for task in tasks)

    def _set_topology(self, topology: ClusterTopology) -> None:
        before, self.topology = self.tasks, topology
        self.tasks = {}
        for task in topology.on(self.host):
            runtime = before.get(task.name)  # reuse it: the callbacks that watch its process refer to it
            if runtime is None:
                log, log_buffer = self._folder.log_of(task.short), self._folder.log_buffer_of(task.short)
                runtime = TaskRuntime(task, TaskStateMachine(task.restart), log, log_buffer)
            runtime.spec, runtime.machine = task, replace(runtime.machine, policy=task.restart)
            self.tasks[task.name] = runtime
        if topology.on(self.host):
            self._log_collector.start(topology.logs)

    def write_journal(self) -> None:
        """Write a snapshot to the journal: the topology and the state of every task."""
        try:
            self._write_snapshot()
        except ClusterError as error:
            self.journal_obstacle = _explain(error, self._folder.path)
            raise
        self.journal_obstacle = ""

    def _write_snapshot(self) -> None:
        assert self.topology is not None, "events come to tasks, and tasks from a topology"
        tasks = {name: task.to_record() for name, task in self.tasks.items()}
        self._folder.check_lock()
        try:
            # Write the secret values first: without them the next agent could not start the tasks.
            topology = self._secrets.redact(self.topology, self.next)
            following = without_values(self.next) if self.next else None
            private = self._network.private
            self._folder.journal.write(Record(topology, tasks, self._secrets.path, following, private, PROTOCOL))
        except OSError as error:
            file = error.filename or self._folder.journal.path
            raise ClusterError(f"{file}: cannot write the journal: {error.strerror}") from error
        self._network.release()
        with suppress(OSError):  # the disk is full: the next snapshot tries again
            self._secrets.prune()

    def load_tensorflow(self) -> TensorFlow:
        """Return TensorFlow's C library, which is loaded at the first call.

        Raises ClusterError: TensorFlow is not installed, or cannot be used.
        """
        if self.tensorflow is None:
            self.tensorflow = TensorFlow(find_tensorflow_library())
        return self.tensorflow

    def dispatch(self, events: Iterable[tuple[TaskRuntime, TaskEvent]]) -> None:
        """Dispatch events to the tasks' state machines, and write the journal once for all transitions that result.

        A process that is forked begins its work when the journal contains it: if this agent dies, the next one can
        adopt it. If the journal cannot be written, the process is ended and the task waits until it can be.
        """
        transitions = [self._make_transition(task, event) for task, event in events]
        tasks = {each.task.spec.name: each.task.to_record() for each in transitions if each.is_durable}
        try:
            if tasks and not self._folder.journal.append(tasks):
                self.write_journal()
        except ClusterError as error:
            _logger.error("%s", error.message)
            for index, each in enumerate(transitions):
                if each.child is not None:  # its task waits, as its process is not in the journal
                    each.end_child()
                    transitions[index] = self._wait(each.task, each.event, each.before, self.journal_obstacle)
        self._publish(transitions)

    def _make_transition(self, task: TaskRuntime, event: TaskEvent) -> Transition:
        """Dispatch an event to a task's state machine, and take the action that it requests.

        A process that is forked waits to be released. A task that cannot be started now waits until it can be.
        """
        before, child = task.machine, None
        task.machine, action = before.handle(event, time.monotonic(), random.random())
        if action is Action.SPAWN:
            try:
                if event is TaskEvent.TIMER and self.journal_obstacle:  # the agent tries to write it once a second
                    raise StartBlockedError(self.journal_obstacle)
                child = self.fork(task)
            except StartBlockedError as obstacle:
                return self._wait(task, event, before, str(obstacle))
        elif action is not None and task.pidfd is not None:
            send_signal(task.pidfd, signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)
            task.killed = task.killed or action is Action.KILL
            if event is TaskEvent.PROBE_FAILED:
                task.startup_error = f"{with_reason('it did not answer', task.probe_error)}, so its agent killed it"
            elif event is TaskEvent.RESTART:
                task.startup_error = "`tfcluster restart` stopped it"
        self._set_timer(task)
        return Transition(task, event, before, action, child)

    def _wait(self, task: TaskRuntime, event: TaskEvent, before: TaskStateMachine, obstacle: str) -> Transition:
        """Let a task wait that cannot be started now; its status and the event log say why."""
        task.machine, _ = task.machine.handle(TaskEvent.BLOCKED, time.monotonic(), random.random())
        if task.machine.state is TaskState.BACKING_OFF:
            obstacle = f"waiting: {obstacle}"
        is_new = event is not TaskEvent.TIMER or task.startup_error != obstacle
        if is_new:
            task.startup_error, task.last_exit = obstacle, LastExit(NOT_STARTED, time.time(), obstacle)
        self._set_timer(task)
        return Transition(task, TaskEvent.BLOCKED, before, None, None, obstacle if is_new else "")

    def _publish(self, transitions: Iterable[Transition]) -> None:
        """Record transitions in the event log, notify those who watch the cluster, and release forked processes."""
        for each in transitions:
            if (description := each.describe()) is not None:
                self.history.record(description[0], task=each.task.spec.short, detail=description[1])
        if any(each.is_visible for each in transitions):
            self.changed.notify()
        for each in transitions:
            if each.child is not None:
                each.child.send({})

    def _set_timer(self, task: TaskRuntime) -> None:
        """Schedule the timer event of a task; replaces one that was scheduled before."""
        task.timer.cancel()
        if task.machine.deadline is not None:
            delay = max(0.0, task.machine.deadline - time.monotonic())
            task.timer.set(delay, self.dispatch, [(task, TaskEvent.TIMER)])

    def fork(self, task: TaskRuntime) -> subprocesses.ChildProcess | None:
        """Fork a task's server, which waits until it is released by a first message.

        If TensorFlow cannot be loaded, the task counts as one that died and is retried according to its restart policy.
        If the values of the task's secrets are lost, the task fails without a retry.

        Return the process, or None if none was forked. Raises StartBlockedError: another process uses the task's port,
        or the system has no process, memory or disk space left.
        """
        topology = self.topology
        assert topology is not None, "events come to tasks, and tasks from a topology"
        if names := task.spec.lost_secrets:
            task.startup_error = (
                f"secret {', '.join(names)} is lost (the journal does not store secrets): `tfcluster up SPEC` "
                f"supplies it again"
            )
            asyncio.get_running_loop().call_soon(self._record_failure, task)
            return None
        self._reserve_port(task)
        try:
            self._network.find(topology.network)
            body = partial(self._serve_when_released, self.load_tensorflow(), topology, task)
        except ClusterError as error:
            task.startup_error = f"no process could be started for it: {error}"
            asyncio.get_running_loop().call_soon(self._record_exit, task, None)
            return None
        except OSError as error:  # no descriptor is left to look for the library
            raise StartBlockedError(_explain(error, self._folder.path)) from error
        try:
            prepare(task.log_buffer, task.log)
            child = subprocesses.fork_child(body, partial(self.on_exit, task), self._network.enter)
        except (ClusterError, OSError) as error:
            raise StartBlockedError(_explain(error, self._folder.path)) from error
        task.process, task.pidfd = child.process, child.pidfd
        task.meter = ProcessMeter(child.process.pid)
        task.memory = OomDetector(child.process.pid, time.monotonic())
        task.started, task.generation = time.time(), topology.generation
        task.startup_error, task.killed = "", False
        child.on_message(partial(self._on_message, task), lambda: None)
        return child

    def _serve_when_released(
        self, tensorflow: TensorFlow, topology: ClusterTopology, task: TaskRuntime, agent: socket.socket
    ) -> None:
        """Run a task's server, in its process, when the agent releases it, which it does by a message.

        If the agent dies before that, no later agent might know of the process, so it exits.
        """
        if agent.recv(1):
            folder = topology.folder if self.host == LOCAL_HOST else None
            folders = [Path(folder), self._folder.files] if folder else [self._folder.files]
            serve(tensorflow, topology, task.spec, task.log_buffer, agent, folders)
        elif (process := ProcessHandle.from_pid(os.getpid())) is not None:
            self._folder.journal.note_unreleased(process)

    def _reserve_port(self, task: TaskRuntime) -> None:
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

    def _on_message(self, task: TaskRuntime, message: Message) -> None:
        if "error" in message:
            task.startup_error = message["error"]
        else:  # it serves
            self._background.start(self.check_until_ready, task)

    def on_exit(self, task: TaskRuntime, status: int | None) -> None:
        """Handle the exit of a task's process; `status` is that of waitpid; None if an earlier agent had started it."""
        oom_note = ""
        if task.memory is not None and not task.killed and was_killed(status):
            oom_note = task.memory.describe()
        task.clear_process()
        # Defer this: the process's own error report may not have been read yet when its exit is noticed.
        asyncio.get_running_loop().call_soon(self._record_exit, task, status, oom_note)
        if task.machine.desired_running and task.spec.port is not None:
            with suppress(OSError):  # if descriptors are scarce, the server needs them more
                self._ports.reserve(task.spec.port)  # immediately, because no process listens on it now

    def _record_failure(self, task: TaskRuntime) -> None:
        task.last_exit = LastExit(NOT_STARTED, time.time(), task.startup_error)
        self.dispatch([(task, TaskEvent.UNSTARTABLE)])

    def _record_exit(self, task: TaskRuntime, status: int | None, oom_note: str = "") -> None:
        is_stopping = task.machine.state is TaskState.STOPPING
        reason = format_exit_status(status) + oom_note
        task.last_exit = LastExit(reason, time.time(), task.startup_error, expected=is_stopping)
        clean = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        self.dispatch([(task, TaskEvent.CLEAN_EXIT if clean else TaskEvent.FAILED_EXIT)])

    def check_all(self) -> None:
        """Sample the resource usage of every task, and start a health check of each in the background."""
        for task in self.tasks.values():
            task.sample_usage()
            if task.machine.state in HAS_PROCESS and not task.being_checked:
                self._background.start(self.check, task)

    async def pause(self) -> None:
        """Wait until the next check of all tasks."""
        interval = settings.HEALTH_INTERVAL_SECONDS
        retry = min(settings.HEALTH_RETRY_SECONDS, interval)
        await asyncio.sleep(retry)
        if not any(task.machine.failed_probes for task in self.tasks.values()):
            await asyncio.sleep(interval - retry)

    async def check(self, task: TaskRuntime, *, tolerate_timeout: bool = False) -> None:
        """Probe a task and dispatch the outcome to its state machine.

        With `tolerate_timeout`, a probe without an answer is ignored instead of counted as failed.
        """
        probed_process = task.process
        task.being_checked = True
        try:
            result = await self._prober.probe(task.spec.address, settings.PROBE_TIMEOUT_SECONDS)
        finally:
            task.being_checked = False
        if probed_process is None or task.process != probed_process:
            return  # the result for a process that has exited says nothing about its successor
        self._note_answer(task, result)
        if result.outcome is not ProbeOutcome.SILENT or not tolerate_timeout:
            self.on_probe(task, result)

    def _note_answer(self, task: TaskRuntime, result: ProbeResult) -> None:
        """Note what a probe of a task has found out, for its status and for messages about it."""
        if result.outcome is ProbeOutcome.PROBE_OK:
            task.devices = result.devices
        if result.outcome is not ProbeOutcome.UNKNOWN and task.process and task.probe_error != result.reason:
            task.probe_error = result.reason
            self.changed.notify()

    def on_probe(self, task: TaskRuntime, result: ProbeResult) -> None:
        """Handle the result of a probe of a task."""
        if result.outcome is ProbeOutcome.PROBE_OK:
            self.dispatch([(task, TaskEvent.PROBE_OK)])
        elif result.outcome is ProbeOutcome.SILENT:
            _logger.info(with_reason("did not answer a probe", result.reason), extra={"task": task.spec.short})
            # A busy machine may keep a server from answering, but not one that a signal has stopped: it counts twice.
            is_stopped = task.process is not None and is_stopped_by_signal(task.process.pid)
            self.dispatch([(task, TaskEvent.PROBE_FAILED)] * (2 if is_stopped else 1))

    async def check_until_ready(self, task: TaskRuntime) -> None:
        """Check a task at short intervals until it is ready, because a command may be waiting for it.

        On a busy machine a task may not answer yet although its process has reported that it serves. These checks do
        not count as failed; only the regular ones do.
        """
        process = task.process
        for _ in range(settings.PROBE_RETRIES):
            await self.check(task, tolerate_timeout=True)
            if task.process != process or task.machine.state is not TaskState.STARTING:
                return
            await asyncio.sleep(settings.PROBE_RETRY_SECONDS)

    async def probe_all(self, timeout: float) -> set[TaskRuntime]:
        """Probe all ready tasks concurrently.

        Return the tasks that are not ready or did not answer within `timeout` seconds.
        """
        ready = [task for task in self.tasks.values() if task.machine.state is TaskState.READY]
        silent = set(self.tasks.values()) - set(ready)
        results = await asyncio.gather(*(self._prober.probe(task.spec.address, timeout) for task in ready))
        for task, result in zip(ready, results, strict=True):
            self._note_answer(task, result)
            if result.outcome is ProbeOutcome.SILENT:
                silent.add(task)
        return silent

    async def wait_until_started(self, timeout: float) -> None:
        """Wait until no task of this host is starting any more, or for at most `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while any(task.machine.state is TaskState.STARTING for task in self.tasks.values()):
                    await self.changed.wait_for_change(self.changed.count)

    async def list_devices(self, timeout: float) -> tuple[list[Device], list[str]]:
        """Probe all tasks for their devices.

        Return the devices, and one text for each task that has reported none, with the reason.
        """
        silent = await self.probe_all(timeout)
        tasks = self.tasks.values()
        devices = [device for task in tasks if task not in silent for device in task.devices]
        return devices, [task.describe_problem() for task in tasks if task in silent]


def _explain(error: OSError | ClusterError, folder: Path) -> str:
    """Return why a file could not be written, or no process could be forked.

    Of a ClusterError, its cause counts. `folder` is the folder of the file, unless the error names another one.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError) or cause.errno is None:
        return error.message if isinstance(error, ClusterError) else str(error)
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
