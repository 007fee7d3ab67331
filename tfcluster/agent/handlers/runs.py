"""RPC handlers of `run`, `launch` and `sweep`: submit, attach to, list and cancel runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.event_loop import BackgroundTasks, ChangeWaiter, Turn, wait_for_first
from tfcluster.agent.handlers.files import Upload, receive, validate_filename
from tfcluster.agent.runs.manager import RunManager, result_event
from tfcluster.agent.runs.reports import parse_events, read_latest_metrics
from tfcluster.agent.runs.run import Run
from tfcluster.core.devices import Device, Selection, missed, not_ready, select
from tfcluster.core.groups import Group, check_arguments
from tfcluster.core.programs import BUNDLED, SCRIPT, TOLERANT, missing_notes
from tfcluster.core.run_events import OutputEvent, to_record
from tfcluster.core.runs import RunOptions
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.text import summarize_list
from tfcluster.core.tf_config import refusal_notes
from tfcluster.core.topology import PRIVATE, check_address
from tfcluster.core.trials import select_group
from tfcluster.errors import ClusterError, usage_error
from tfcluster.os.files import first_data
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.runs.run_plan import EVENTS, OUTPUT, OUTPUT_INDEX, RunPlan
from tfcluster.processes.runs.stored_output import OutputPart, missing_bytes, missing_text
from tfcluster.processes.runs.streams import STDERR
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.runs import (
    ATTACHED,
    AttachRequest,
    CancelReply,
    CancelRequest,
    EventRecord,
    FailingRunsReply,
    FailingRunsRequest,
    JoinRequest,
    RunRequest,
    RunsReply,
    RunsRequest,
    SignalRequest,
)
from tfcluster.protocol.codec import Message
from tfcluster.protocol.serialization import DecodeError, decode
from tfcluster.records import record_class


class RunHandlers:
    """Handles the requests about runs."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._supervisor = context.supervisor
        self._runs = context.runs
        self._background = BackgroundTasks()

    def start_again(self) -> None:
        """Start the runs whose agent died before they had started, as far as their records say all that this takes.

        Scripts wait for their command, which has what is written to no file: an environment or a secret.
        """
        for run in self._runs.runs.values():
            options, detached = run.record.options, run.record.detached
            if run.is_unstarted and not options.is_script:
                self._background.start(self._start_again, run, RunRequest(options, detached, not detached), key=run.id)

    async def _start_again(self, run: Run, request: RunRequest) -> None:
        try:
            if request.options.jobs is None:  # a task that was adopted a moment ago may not have answered yet
                await self._supervisor.wait_until_started(settings.READY_TIMEOUT_SECONDS)
            plan = await plan_run(self._context, request, run.id)
            if run.is_unstarted:  # it was not stopped while its devices were probed
                self._runs.start_again(run, plan)
                self._context.report_lost_tasks()  # those that have died since they were probed
        except (ClusterError, OSError) as error:
            if isinstance(error, OSError):
                message = f"{error.filename or run.folder}: cannot start {run.id} again: {error.strerror}"
                error = ClusterError(message, hint=f"`tfcluster rerun {run.id}` runs it again.")
            if run.is_unstarted:
                self._runs.fail(run, error)

    async def run(self, request: RunRequest, upload: Upload) -> Response[EventRecord, Done]:
        """Submit a run and send its events; see `RunRequest`.

        A run that the command does not own continues after the command disconnects, once its upload is complete.
        """
        self._context.reject_if_going_down()
        if request.options.upload is not None:
            validate_filename(request.options.upload_name)
        plan = await plan_run(self._context, request)
        run = self._submit(plan, detached=request.detach or not request.cancel_on_disconnect)
        self._context.report_lost_tasks()  # those that have died since they were probed
        async with contextlib.aclosing(
            self._events(run, upload, request.detach, request.cancel_on_disconnect)
        ) as events:
            async for event in events:
                yield EventRecord(event)
        yield Reply(Done())

    async def join(self, request: JoinRequest) -> Response[NoReturn, Done]:
        """Start the process that starts a group's members on this host, and reply when the coordinator has accepted it.

        From then on the coordinator notices if this host is lost, and before that the command does.
        """
        self._context.reject_if_going_down()
        run = self._submit(plan_part(self._context, request), detached=True)
        self._runs.start(run)
        async with contextlib.aclosing(follow(self._runs, run.id, output=None)) as events:
            async for event in events:
                if error := event.get("error"):  # of the result
                    raise ClusterError.from_json(error)
                if event["event"] == "coordinator":
                    break
        yield Reply(Done())

    def _submit(self, plan: RunPlan, *, detached: bool) -> Run:
        try:
            return self._runs.submit(plan, detached)
        except OSError as error:
            shutil.rmtree(plan.folder, ignore_errors=True)
            raise ClusterError(f"{plan.folder}: cannot record the run: {error.strerror}") from error

    async def _events(
        self, run: Run, upload: Upload, detach: bool, cancel_on_disconnect: bool
    ) -> AsyncGenerator[Message, None]:
        """Yield the events of a new run, and start its driver after the command has received the first event.

        With `cancel_on_disconnect`, the run is cancelled if the command disconnects without a message (for example
        because the terminal was closed), because nothing waits for its result.
        """
        starting: asyncio.Future[None] | None = None
        # The command has the other hosts join the group before it is detached.
        group = None if run.plan is None else run.plan.group
        has_remote_members = group is not None and group.hosts != (self._supervisor.host,)
        is_detached = False
        try:
            async with contextlib.aclosing(follow(self._runs, run.id)) as events:
                async for each in events:
                    yield each
                    # The command knows the run's id now, so that it can find the run again if this agent dies.
                    starting = starting or asyncio.ensure_future(self._start(run, upload))
                    while detach and run.is_active and not starting.done():
                        await wait_for_first(asyncio.wait({starting}), run.changed.wait_for_change(run.changed.count))
                    is_submitted = not has_remote_members or each["event"] == "coordinator"
                    if detach and is_submitted and run.is_active and not run.has_exited:
                        is_detached = True
                        break
        finally:
            has_upload = run.record.options.upload is not None
            continues = not cancel_on_disconnect and (not has_upload or (starting is not None and upload.is_complete))
            if starting is not None and not continues:
                starting.cancel()
            if continues and not has_upload:
                self._runs.start(run)  # if the command disconnected before
            if not (is_detached or continues):
                self._runs.cancel(run.id)

    async def _start(self, run: Run, upload: Upload) -> None:
        """Start a run's driver, after its upload (if there is one) is complete."""
        assert run.plan is not None, "it has just been submitted"
        try:
            if (path := run.plan.upload_path) is not None:
                await receive(upload, path)
        except ClusterError as problem:
            self._runs.fail(run, problem)
        else:
            self._runs.start(run)
        finally:
            if not run.is_active:  # the run ended during the upload
                shutil.rmtree(run.upload, ignore_errors=True)

    async def runs(self, request: RunsRequest) -> Response[NoReturn, RunsReply]:
        """List the runs, the oldest first."""
        records = await self._runs.all_records()
        if request.lines is not None:
            records = records[len(records) - min(request.lines, len(records)) :]
        summaries, turn = [], Turn()
        for record in records:
            folder = self._runs.store.folder(record.run)
            if record.options.is_script and record.state in ACTIVE_RUN_STATES:
                record = replace(record, result=read_latest_metrics(folder / EVENTS))
            summaries.append(record.summarize(missing_bytes(folder)))
            await turn.pause()
        yield Reply(RunsReply(tuple(summaries)))

    async def attach(self, request: AttachRequest) -> Response[EventRecord, Done]:
        """Send the events of a run up to its result; see `AttachRequest`."""
        run_id = self._runs.store.find(request.run)
        if request.only_result:
            async with contextlib.aclosing(wait_for_result(self._runs, run_id)) as results:
                async for event in results:
                    yield EventRecord(event)
            yield Reply(Done())
            return
        active = self._runs.runs.get(run_id)
        if active is not None and active.is_unstarted and request.again is not None:
            self._background.start(self._start_again, active, request.again, key=run_id)
        if request.cancel_on_disconnect and active is not None:
            active.orphan_timer.cancel()  # the command that waits for the run is back, after its agent died
        try:
            if request.events:  # at once: a run may be silent for longer than a command waits for an agent
                yield EventRecord({"event": ATTACHED})
            if request.again is not None and request.again.detach and request.again.options.jobs is None:
                yield Reply(Done())
                return
            followed = follow(self._runs, run_id, output=request.output)
            async with contextlib.aclosing(followed) as events:
                async for event in skip(events, request.events):
                    yield EventRecord(event)
        finally:
            if request.cancel_on_disconnect:
                self._runs.cancel(run_id)
        yield Reply(Done())

    async def cancel(self, request: CancelRequest) -> Response[NoReturn, CancelReply]:
        """Cancel a run, or interrupt a script."""
        run_id = self._runs.store.find(request.run)
        active = self._runs.runs.get(run_id)
        if not (request.interrupt and active is not None and active.interrupt()):
            self._runs.cancel(run_id)
        yield Reply(CancelReply(run_id))

    async def signal(self, request: SignalRequest) -> Response[NoReturn, Done]:
        """Pass a signal on to a script; see `SignalRequest`."""
        if active := self._runs.runs.get(request.run):
            active.pass_signal(Signals[request.signal.value], request.columns, request.lines)
        yield Reply(Done())

    async def failing_runs(self, request: FailingRunsRequest) -> Response[NoReturn, FailingRunsReply]:
        """Return which of the active runs may fail when tasks are restarted: those that use them, or may do so."""
        tasks = self._supervisor.require_cluster().tasks
        names = [task.name for task in tasks]
        restarted = {task.name for task in tasks if task.short in request.tasks}
        active = [run.record for run in self._runs.runs.values() if run.is_active]
        fragile = [record for record in active if record.options.program not in TOLERANT]
        failing = [each for each in fragile if not restarted.isdisjoint(each.options.used_tasks(each.devices, names))]
        yield Reply(FailingRunsReply(tuple(record.run for record in failing)))


async def plan_run(context: AgentContext, request: RunRequest, run_id: str | None = None) -> RunPlan:
    """Choose the devices of a run, and return its plan; without an id, it is a new one, whose folder is created.

    Raises ClusterError: the run needs a task that is not ready, or has other options that cannot be met.
    """
    options = request.options
    _check_parameters(options)
    if options.jobs is not None:
        group = _make_group(context, options, request.secret)
        check_python(request, [host for host in group.hosts if request.caller is None or host != context.host])
        run_id = run_id or context.runs.store.new_run(options.run_name, is_on_several_hosts=len(group.hosts) > 1)
        return replace(_plan_group(context, run_id, options, group), code=request.code, caller=request.caller)
    check_python(request, [context.host] if request.caller is None else [])
    every, missing = await _probe_devices(context)
    devices = [device for device in every if device.task not in missing]
    context.reject_if_going_down()
    topology = context.supervisor.require_cluster()
    selection = _select(devices, missing, options)
    context.network.find(topology.network)  # before the folder: it may be gone
    run_id = run_id or context.runs.store.new_run(options.run_name)
    refused = refusal_notes(topology.addresses()) if options.is_script else []
    notes = [*selection.notes, *missing_notes(missing), *refused]
    first_notes = notes
    if not options.is_script:  # which may use any task; a bundled program ends with the notes on its devices
        first_notes = missing_notes(missed(missing, options.devices, [task.name for task in topology.tasks]))
        notes = [*selection.notes, *first_notes]
    return replace(
        _make_plan(context, run_id, options, notes),
        first_notes=first_notes,
        devices=[device.name for device in selection.devices],
        late_devices=_late_devices(every, missing, selection, options),
        missing=missing,
        code=request.code,
        caller=request.caller,
        streams=request.streams,
    )


def plan_part(context: AgentContext, request: JoinRequest) -> RunPlan:
    """Create the folder of the run that starts the members on this host of a group that another host leads.

    If this host was lost to the group, it is there from an earlier attempt.
    """
    _check_parameters(request.options)
    check_address(request.coordinator)
    group = replace(_make_group(context, request.options, request.secret), coordinator=request.coordinator)
    run = validate_filename(request.run)
    if not (context.runs.store.make_folder(run) or context.runs.forget_part(run)):
        raise ClusterError(f"host {context.host} has another run {request.run} already", hint="Launch it again.")
    return replace(_plan_group(context, request.run, request.options, group), code=request.code)


@record_class(frozen=True)
class _Script:
    """The parameters of a script that are used here, or before it can report what is wrong with them."""

    args: tuple[str, ...]
    cwd: str
    argument: str = ""
    path: str | None = None
    module: str | None = None


def _check_parameters(options: RunOptions) -> None:
    """Raise a ClusterError if there is no such program, or a script has not the parameters of one."""
    if options.program not in (*BUNDLED, SCRIPT):
        raise ClusterError(f"request 'run': there is no program {options.program!r}")
    try:
        if options.is_script or options.jobs is not None:
            decode(_Script, options.parameters, "options.parameters", lenient=True)
    except DecodeError as error:
        raise ClusterError(f"request 'run': {error.without_value}") from None


def check_python(request: RunRequest, other_hosts: Sequence[str]) -> None:
    """Raise a ClusterError if the user has named a Python of the command's machine for hosts that are others."""
    if other_hosts and (python := request.options.parameters.get("python")) is not None:
        raise usage_error(
            f"--python {python} is a Python of your machine, and the script runs on {summarize_list(other_hosts)}",
            "`python:` of the host in the spec names the Python there.",
        )


def _make_group(context: AgentContext, options: RunOptions, secret: str) -> Group:
    topology = context.supervisor.require_cluster()
    context.network.find(topology.network)  # before the run has a folder: it may be gone
    members = select_group(topology, options)
    jobs = {member.job for member in members}
    servers = {job: addresses for job, addresses in topology.addresses().items() if job not in jobs}
    if options.sweep is not None:
        servers = {}  # trials use none
    else:
        check_arguments(options.arguments, list(topology.addresses()))
    address = next(host.address for host in topology.hosts if host.name == context.host)
    if topology.network == PRIVATE:
        address = LOCAL_HOST
    return Group(members, servers, secret, address)


def _plan_group(context: AgentContext, run_id: str, options: RunOptions, group: Group) -> RunPlan:
    notes = refusal_notes({member.job for member in group.members}) if options.sweep is None else []
    return replace(_make_plan(context, run_id, options, notes), group=group)


def _make_plan(context: AgentContext, run_id: str, options: RunOptions, notes: list[str]) -> RunPlan:
    """Return what is the same for all plans of runs on this host; the devices are none."""
    topology = context.supervisor.require_cluster()
    return RunPlan(
        run=run_id,
        cluster=topology.cluster,
        options=options,
        folder=context.runs.store.folder(run_id),
        addresses=topology.addresses(),
        head=topology.head().address,
        devices=[],
        notes=notes,
        first_notes=notes,
        peers={host.name: host.address for host in topology.hosts} if topology.closes_ports else None,
        host=context.host,
        network=context.network.find(topology.network),
        ports=topology.program_ports_on(context.host),
        output_limit=topology.logs.run,
    )


async def _probe_devices(context: AgentContext) -> tuple[list[Device], dict[str, str]]:
    """Probe all tasks, on this host and on others, and list their devices.

    Returns the devices in the order of the tasks in the topology, and why each task that is not ready is not, by its
    name. Of such a task, the devices are those of its last answer; without one, the CPU that every server has.
    """
    supervisor = context.supervisor
    names = {task.name: number for number, task in enumerate(supervisor.require_cluster().tasks)}
    silent, (devices, missing) = await asyncio.gather(
        supervisor.probe_all(settings.RUN_PROBE_SECONDS), context.remote_tasks.probe_all()
    )
    missing.update({task.spec.name: task.describe_problem() for task in silent})
    devices += [device for task in supervisor.tasks.values() for device in task.devices]
    known = {device.task for device in devices}
    unknown = [task for task in missing if task not in known]
    devices += [Device(task.replace("/task:", "/replica:0/task:") + "/device:CPU:0", "CPU") for task in unknown]
    existing = [device for device in devices if device.task in names]
    return sorted(existing, key=lambda device: names[device.task]), missing


def _select(devices: list[Device], missing: Mapping[str, str], options: RunOptions) -> Selection:
    """Select the devices of a run, which does without the tasks that are not ready.

    `missing` says why tasks are not ready, by their names; `devices` are those of all other tasks.
    """
    selection = select(devices, patterns=options.devices, gpus=options.gpus, strict=options.strict, missing=missing)
    if missing and not selection.devices and not options.is_script:  # which need not compute on any task
        raise not_ready(missing.values())
    return selection


def _late_devices(
    every: list[Device], missing: Mapping[str, str], selection: Selection, options: RunOptions
) -> list[str]:
    """Return the devices that a run would use too if their tasks were ready.

    They are of the same types as those that it uses. A run on a number of GPUs has no others.
    """
    types = {device.type for device in selection.devices}
    if not missing or (options.gpus is not None and "GPU" in types):
        return []
    wanted = select(every, patterns=options.devices).devices
    return [device.name for device in wanted if device.task in missing and device.type in types]


# The events that no output is yielded before, as far as both are known: most are written before a driver can print.
_FIRST = ("run", "importing", "imported", "task_down")


async def follow(runs: RunManager, run_id: str, *, output: int | None = 0) -> AsyncGenerator[Message, None]:
    """Stream a run's events from the first one to its result, also for a run that has ended.

    Args:
        output: The position in what a script prints from which on to read it; None to leave it out.

    Raises:
        ClusterError: There is no record of the run.
    """
    run, record = runs.runs.get(run_id), runs.record(run_id)
    folder = runs.store.folder(run_id)
    has_result = False

    def is_active() -> bool:
        return run is not None and run.is_active

    with contextlib.ExitStack() as stack:
        parts = Output(folder, output) if record.options.is_script and output is not None else None
        wait: Callable[[], Awaitable[None]] = _no_wait
        if run is not None and run.is_active:
            is_watched = stack.enter_context(runs.watcher.watch(folder, run.changed.notify))
            poll_interval = None if is_watched else settings.RUN_POLL_SECONDS
            wait = ChangeWaiter(run.changed, settings.RUN_READ_INTERVAL_SECONDS, poll_interval).wait
        async for event in stream_files(folder / EVENTS, parts, is_active, wait):
            has_result = event["event"] == "result"
            yield event
    record = record if run is None else run.record
    if not has_result and record.state not in ACTIVE_RUN_STATES:  # the disk was full when it was written
        yield to_record(result_event(record))


async def wait_for_result(runs: RunManager, run_id: str) -> AsyncGenerator[Message, None]:
    """Yield a run's id at once, and its result when it has ended, without reading what it prints."""
    yield {"event": "run", "run": run_id}
    run = runs.runs.get(run_id)
    while run is not None and run.is_active:
        await run.changed.wait_for_change(run.changed.count)
    yield to_record(result_event(runs.record(run_id)))


async def _no_wait() -> None:
    """Return at once: nothing more is written for a run that has ended."""


class _Lines:
    """Reads the lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read_block(self) -> tuple[list[tuple[int, bytes]], bool]:
        """Return the lines that the next block of the file completes, with their offsets, and whether it was empty."""
        data = b""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb", buffering=0) as file:
            if (stored := first_data(file.fileno(), self._offset)) > self._offset:
                self._offset, self._rest = stored, b""
            data = os.pread(file.fileno(), settings.IO_BLOCK_BYTES, self._offset)
        start = self._offset - len(self._rest)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        starts = itertools.accumulate((len(line) + 1 for line in lines), initial=start)
        return list(zip(starts, lines, strict=False)), not data


class Output:
    """Reads the stored output of a run, part by part; see `tfcluster.processes.runs.stored_output`."""

    def __init__(self, folder: Path, position: int = 0) -> None:
        self._path, self._index_path = folder / OUTPUT, folder / OUTPUT_INDEX
        self._index = _Lines(self._index_path)
        self.position = position  # the position in the whole output from which on to read next

    async def read_events(self) -> AsyncIterator[Message]:
        """Yield an event for each part that has been written. Other asyncio tasks get to run after each block."""
        is_quiet = False
        while not is_quiet:
            lines, is_quiet = self._index.read_block()
            parts = [part for at, line in lines if (part := OutputPart.parse(line, at)) is not None]
            with contextlib.suppress(FileNotFoundError):
                for event in self._read(part for part in parts if part.offset >= self.position):
                    yield event
            await asyncio.sleep(0)

    def read_missing_end(self) -> Iterator[Message]:
        """Yield an event if the end of the output is not stored; call this when all that is stored has been read."""
        with contextlib.suppress(FileNotFoundError):
            yield from self._skip_to(self._path.stat().st_size)

    def _read(self, parts: Iterable[OutputPart]) -> Iterator[Message]:
        """Yield the events of parts, as far as these are still stored when they have been read."""
        with self._path.open("rb") as output, self._index_path.open("rb", buffering=0) as index:
            for batch in _batches(parts):
                contents = []
                for part in batch:
                    output.seek(part.offset)
                    contents.append(output.read(part.size))
                start = batch[0].at
                stored = os.pread(index.fileno(), batch[-1].at + len(batch[-1].line) - start, start)
                for part, content in zip(batch, contents, strict=True):
                    if stored.startswith(part.line, part.at - start):
                        yield from self._skip_to(part.offset)
                        data = content.decode(errors="surrogateescape")
                        yield to_record(OutputEvent(part.stream, data, task=part.task))
                        self.position = part.offset + part.size

    def _skip_to(self, position: int) -> Iterator[Message]:
        if (missing := position - self.position) > 0:
            self.position = position
            yield to_record(OutputEvent(STDERR, f"{missing_text(missing)}\n", missing))


def _batches(parts: Iterable[OutputPart]) -> Iterator[list[OutputPart]]:
    """Yield groups of parts of some size: what is checked after it was read is checked together."""
    batch: list[OutputPart] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += part.size
        if size >= settings.IO_BLOCK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def stream_files(
    events: Path, output: Output | None, is_active: Callable[[], bool], wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[Message]:
    """Stream a run's events and, optionally, its output.

    Output that was printed before an event is yielded before it, but for the events of `_FIRST`: that a task is down
    explains what TensorFlow prints about it. The result is yielded last, once the run has ended.

    `output` is None to leave the output out. `wait` waits until more may have been written.
    """
    event_lines = _Lines(events)
    result: Message | None = None
    while True:
        has_ended = not is_active()  # checked before reading, so that the last writes are not missed
        lines, is_quiet = event_lines.read_block()
        events_read = parse_events(line for _, line in lines)
        result = next((event for event in events_read if event["event"] == "result"), result)
        new_events = [event for event in events_read if event["event"] != "result"]
        while any(event["event"] in _FIRST for event in new_events):
            yield new_events.pop(0)
        if output is not None:
            async for part in output.read_events():
                yield part
        for event in new_events:
            yield event
        if is_quiet and has_ended:
            break
        if is_quiet:
            await wait()
    for part in output.read_missing_end() if output is not None else ():
        yield part
    if result is not None:
        yield result


async def skip(messages: AsyncIterator[Message], events: int) -> AsyncIterator[Message]:
    """Skip the first events of a stream, for a client that received them before its agent died; those of output stay.

    `events` is the number of events to skip; those of output do not count.
    """
    async for message in messages:
        if message["event"] == "output" or events <= 0:
            yield message
        else:
            events -= 1
