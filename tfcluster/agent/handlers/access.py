"""RPC handlers for access to processes: environments, the commands of `exec`, traces of servers, and stacks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.event_loop import wait_for_first
from tfcluster.agent.runs.waits import describe_task
from tfcluster.agent.subprocesses import run_in_child, watch_exit
from tfcluster.core.environment import client_address, client_variables, task_variables
from tfcluster.core.hints import complete_commands
from tfcluster.core.states import TaskState
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os import procfs
from tfcluster.os.network import free_port
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.paths import PACKAGE_ROOT
from tfcluster.processes.probes import capture_traces, trace_file
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest, ExecRequest
from tfcluster.protocol.api.processes import (
    ProfileReply,
    ProfileRequest,
    RunStacksReply,
    RunStacksRequest,
    TaskThreadsReply,
    TaskThreadsRequest,
    Thread,
    TracePart,
)


@dataclass
class _Command:
    """A command of `exec`."""

    process: ProcessHandle | None = None  # None until it has started
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(self, pid: int) -> None:
        """Watch the process of the command, which is about to execute it."""
        self.process = ProcessHandle.from_pid(pid)
        if self.process is not None:
            watch_exit(self.process, lambda status: self.has_ended.set())


class AccessHandlers:
    """The handlers, and the commands of `exec` by their `exec_id`."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._commands: dict[str, _Command] = {}

    async def environment(self, request: EnvironmentRequest) -> Response[NoReturn, EnvironmentReply]:
        """Return the environment of a task, or of a client on this host; see `EnvironmentRequest`."""
        context = self._context
        if request.process is not None:
            if request.process.exec_id not in self._commands:
                raise ClusterError("the `tfcluster exec` that started this command has ended")
            self._commands[request.process.exec_id].watch(request.process.pid)
        variables = _client_variables(context) if request.task is None else _task_variables(context, request.task)
        yield Reply(
            EnvironmentReply(
                variables,
                python=sys.executable,
                code=str(PACKAGE_ROOT),
                socket=str(context.state_dir.socket),
                state=str(context.state_dir.path),
                network=context.network.find(context.supervisor.require_cluster().network),
            )
        )

    async def exec(self, request: ExecRequest) -> Response[NoReturn, Done]:
        """Wait until the command has ended, or the request is cancelled, and then end it; see `ExecRequest`."""
        command = self._commands[request.exec_id] = _Command()
        try:
            await wait_for_first(command.has_ended.wait(), self._context.quitting.wait())
        except asyncio.CancelledError:
            if command.process is not None:
                await _end(command.process)
            raise
        finally:
            del self._commands[request.exec_id]
        yield Reply(Done())


async def _end(process: ProcessHandle) -> None:
    """End a process, and its process group if it leads one: by SIGTERM, and by SIGKILL after some seconds."""
    deadline = time.monotonic() + settings.EXEC_TERMINATE_SECONDS
    _signal(process, signal.SIGTERM)
    while process.is_alive() and time.monotonic() < deadline:
        await asyncio.sleep(settings.EXEC_POLL_SECONDS)
    _signal(process, signal.SIGKILL)


def _signal(process: ProcessHandle, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.is_alive():
            leads_group = os.getpgid(process.pid) == process.pid
            (os.killpg if leads_group else os.kill)(process.pid, number)


def _task_variables(context: AgentContext, short: str) -> dict[str, str]:
    topology = context.supervisor.require_cluster()
    for task in topology.on(context.host):
        if task.short != short:
            continue
        if names := task.lost_secrets:
            raise ClusterError(
                f"the secret {', '.join(names)} of {short} is lost", hint="`tfcluster up SPEC` supplies it again."
            )
        return task_variables(topology, task, os.environ)
    raise ClusterError(f"no task {short!r} on host {context.host!r}", exit_code=ExitCode.USAGE)


def _client_variables(context: AgentContext) -> dict[str, str]:
    topology = context.supervisor.require_cluster()
    name = context.host
    address = client_address(topology, name, free_port(topology.program_ports_on(name)))
    return client_variables(topology, name, address, os.environ)


async def profile(context: AgentContext, request: ProfileRequest) -> Response[TracePart, ProfileReply]:
    """Capture traces of tasks, and send them; see `ProfileRequest`."""
    supervisor = context.supervisor
    topology = supervisor.require_cluster()
    own = {task.short: task for task in topology.on(context.host)}
    tasks = [own[name] for name in matching_tasks(request.tasks, list(own))]
    states = {task.short: supervisor.tasks[task.name].machine.state for task in tasks}
    failures = {name: f"it is {state.value}" for name, state in states.items() if state is not TaskState.READY}
    addresses = {task.short: task.address for task in tasks if task.short not in failures}
    folder = _make_folder(context.state_dir.profiles)
    try:
        capture = partial(capture_traces, addresses, folder, request.seconds)
        limit = request.seconds + settings.PROFILE_COLLECT_SECONDS + settings.CONNECTIVITY_MARGIN_SECONDS
        outcome = await run_in_child("tfcluster: profiler", capture, limit, context.network.enter)
        reply = ProfileReply(tuple(outcome["idle"]), {**failures, **outcome["failures"]})
        for name in addresses:
            if name in reply.idle or name in reply.failures:
                continue
            async for part in read_trace(trace_file(folder, name), name):
                yield part
    except OSError as error:
        raise ClusterError(f"{error.filename or folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    yield Reply(reply)


async def read_trace(path: Path, task: str) -> AsyncIterator[TracePart]:
    """Yield the trace of a task in parts, each in its own turn of the event loop."""
    with path.open("rb") as file:
        while data := file.read(settings.PROFILE_PART_BYTES):
            yield TracePart(task, base64.b64encode(data).decode())
            await asyncio.sleep(0)


def _make_folder(parent: Path) -> Path:
    """Make the folder for the traces of one request."""
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent))
    except OSError as error:
        raise ClusterError(f"{error.filename or parent}: cannot be written: {error.strerror}") from error


async def run_stacks(context: AgentContext, request: RunStacksRequest) -> Response[NoReturn, RunStacksReply]:
    """Return the Python stacks of a run's processes."""
    runs = context.runs
    run_id = runs.store.find(request.run)
    run = runs.runs.get(run_id)
    if run is None or not run.is_active:
        hint = f"What it printed: `tfcluster logs {run_id}`."
        raise ClusterError(f"{run_id} has ended", hint=hint, exit_code=ExitCode.FAILED)
    processes = await context.stacks.read_all(run.process, run.folder) if run.process else []
    yield Reply(RunStacksReply(run_id, context.host, tuple(processes)))


async def task_threads(context: AgentContext, request: TaskThreadsRequest) -> Response[NoReturn, TaskThreadsReply]:
    """Return the threads of a task's server."""
    supervisor = context.supervisor
    supervisor.require_cluster()
    tasks = {task.spec.short: task for task in supervisor.tasks.values()}
    (short,) = matching_tasks([request.task], list(tasks))
    task = tasks[short]
    silent = await supervisor.probe_all(settings.WAIT_PROBE_SECONDS)
    problem = describe_task(task) if any(each is task for each in silent) else None
    pid = task.process.pid if task.process else None
    yield Reply(
        TaskThreadsReply(
            task=task.spec.name,
            host=task.spec.host,
            state=task.machine.state,
            pid=pid,
            problem=problem.problem if problem else "",
            hint=complete_commands(problem.hint, context.cluster) if problem else "",
            threads=tuple(_read_threads(pid)) if pid else (),
            log=task.log_tail(),
        )
    )


def _read_threads(pid: int) -> Iterator[Thread]:
    """Yield the threads of a process; none if it has exited."""
    for number in procfs.threads(pid):
        with suppress(OSError):  # it has exited
            state = procfs.stat_fields(pid, number)[procfs.STATE]
            yield Thread(number, procfs.thread_name(pid, number), state, procfs.waits_in(pid, number))
