"""The driver of a run: the process that starts the run's program in a child process and supervises it.

The driver outlives the agent and exits with the run. As the program has its own process, it can end with a regular
shutdown of its interpreter. The driver does what the program itself cannot do: it restricts the ports that the program
opens, kills a program whose shutdown takes too long, and records how the program ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NoReturn

from tfcluster import settings
from tfcluster.core.groups import Group
from tfcluster.core.hosts import Host
from tfcluster.core.run_events import CoordinatorEvent, ErrorEvent, LatestMetrics, ResultEvent, RunEvent
from tfcluster.core.text import missing_path
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os import daemonize
from tfcluster.os.network import Address
from tfcluster.os.process_handle import ProcessHandle, format_exit_status
from tfcluster.process_mark import NO_MARK, set_mark
from tfcluster.processes.groups.coordinator import GroupCoordinator
from tfcluster.processes.groups.host import GroupHost
from tfcluster.processes.groups.link import connect
from tfcluster.processes.groups.sweep_driver import SweepDriver
from tfcluster.processes.runs import interpreters
from tfcluster.processes.runs.code_tree import clear_tree, enter_tree
from tfcluster.processes.runs.program_process import report_error
from tfcluster.processes.runs.run_plan import ProgramEnd, RunPlan, acquire_run
from tfcluster.processes.runs.stored_output import OutputRecorder
from tfcluster.processes.runs.streams import STDERR, receive_stdin
from tfcluster.processes.runs.supervised_program import (
    HOST_END_SIGNAL,
    TERMINAL_SIGNALS,
    USER_SIGNALS,
    SupervisedProgram,
    end_like,
    reap_orphans,
    wake_on_signals,
)
from tfcluster.processes.servers.port_isolation import PortIsolationError, addresses_of
from tfcluster.protocol.codec import Message


def main(plan: RunPlan, code_cache: Path) -> NoReturn:
    """Run the driver of a run. The driver exits as the program does: with its exit code, or by its signal.

    SIGINT is blocked, and is unblocked when the program can receive it.

    Raises ScriptStart: in the process of a script.
    """
    folder = plan.folder
    daemonize.detach(f"tfcluster: {plan.cluster} {plan.run}")
    gc.enable()  # the fork server has disabled it; its descriptors are closed now, and its objects are frozen
    if not acquire_run(folder, ProcessHandle.from_pid(os.getpid())):
        os._exit(1)  # the agent has ended the run before its driver started
    try:
        cluster = None if plan.peers is None else addresses_of(Host(*each) for each in plan.peers.items())
        stdin = _receive_stdin(plan)
        plan = enter_tree(plan, code_cache)
        if plan.group is not None:
            interpreters.check_for_members(plan)
    except OSError as error:
        _fail(plan, ClusterError(str(error)))
    except ClusterError as error:
        _fail(plan, error)
    daemonize.become_subreaper()
    if plan.group is not None:
        _drive_group(plan, plan.group, cluster)
    poll = select.poll()
    metrics = LatestMetrics()
    try:
        recorder = OutputRecorder(folder, plan.output_limit)
        program = SupervisedProgram(plan, poll, recorder, stdin, cluster, partial(_report, plan, metrics))
    except OSError as error:
        _fail(plan, ClusterError(f"no process could be started for the program of {plan.run}: {error.strerror}"))
    if stdin is not None:
        os.close(stdin)
    _supervise(plan, program, poll, recorder, metrics)


def _receive_stdin(plan: RunPlan) -> int | None:
    """Take over the command's standard input, and enter the cluster's private network, if there are such.

    The name of the command's socket is one of its network: the private one, if it was started in there.

    Return a descriptor of the standard input; None if the program gets none.
    """
    name = plan.caller.stdin if plan.caller is not None else None
    stdin = None if name is None else receive_stdin(name)
    if plan.network is not None:
        plan.network.enter()
        if name is not None and stdin is None:
            stdin = receive_stdin(name)
    if name is not None and stdin is None:
        raise ClusterError("the command's standard input cannot be taken over: the command has ended")
    return stdin


def _drive_group(plan: RunPlan, group: Group, cluster: Collection[Address] | None) -> NoReturn:
    """Coordinate the group that the run consists of or, if another host does that, start the members on this one.

    Raises ScriptStart: in the process of a member.
    """
    try:
        if group.coordinator is None:
            driver = GroupCoordinator if plan.options.sweep is None else SweepDriver
            driver(plan, group, cluster).run()
        host = GroupHost(plan, group, connect(group.coordinator, group.secret, plan.host), cluster)
        plan.write(CoordinatorEvent(group.coordinator, []))
        code = host.run()
        if host.is_coordinator_lost:
            raise ClusterError(f"the connection to the coordinator of {plan.run} is lost")
        notes = [warning] if (warning := clear_tree(plan)) else []
        end = ProgramEnd(0, "", 0.0, {}, notes)
        plan.write(final_event(plan, 0, end, {}, interrupted=False, lost_bytes=0))
        os._exit(code)
    except OSError as error:
        _fail(plan, ClusterError(f"{plan.run} cannot start on host {plan.host}: {error.strerror or error}"))
    except PortIsolationError as error:
        _fail(plan, ClusterError(f"host {plan.host}: {error.message}", hint=error.hint))
    except ClusterError as error:
        _fail(plan, error)


def _report(plan: RunPlan, metrics: LatestMetrics, event: Message) -> None:
    """Write an event of the program; on a full disk it is lost. Metrics are a part of a script's result alone."""
    if plan.options.is_script:
        metrics.add(event)
    with contextlib.suppress(ClusterError):
        plan.write(event)


def _fail(plan: RunPlan, error: ClusterError) -> NoReturn:
    """Write the event of a run that failed before its program started, and exit."""
    os._exit(report_error(plan, error))


def _supervise(
    plan: RunPlan, program: SupervisedProgram, poll: select.poll, recorder: OutputRecorder, metrics: LatestMetrics
) -> NoReturn:
    """Supervise the program until its process has exited, then exit in the same way."""
    started_at = time.monotonic()
    interrupted = False
    wakeup = wake_on_signals()
    poll.register(wakeup, select.POLLIN)
    reap_orphans([program.pid])  # a daemon that had exited before sends no further SIGCHLD
    while not program.has_exited:
        # The folder is checked from time to time: without it, no agent could find the result.
        for fd, events in poll.poll(1000 * min(settings.DRIVER_POLL_SECONDS, program.seconds_left())):
            if program.handle(fd, events):
                continue
            numbers = wakeup.recv(1 << 10)
            for number in filter({*TERMINAL_SIGNALS, *USER_SIGNALS}.__contains__, numbers):
                if number == signal.SIGWINCH:
                    program.capture.resize(plan.folder)
                program.pass_on(number)
            interrupted |= signal.SIGINT in numbers
            if HOST_END_SIGNAL in numbers and not program.is_terminated:  # it may arrive more than once
                program.terminate(settings.JOB_END_SECONDS)
            if signal.SIGTERM in numbers:
                program.terminate(settings.DRIVER_TERMINATE_SECONDS)
            reap_orphans([program.pid])
        program.check_time()
        if not plan.folder.exists():
            program.kill()
    _record_end(plan, program, recorder, metrics, time.monotonic() - started_at, interrupted=interrupted)


def _record_end(
    plan: RunPlan,
    program: SupervisedProgram,
    recorder: OutputRecorder,
    metrics: LatestMetrics,
    seconds: float,
    *,
    interrupted: bool,
) -> NoReturn:
    """Record how the program's process has ended, and exit in the same way."""
    code = program.reap()
    hint = "" if program.end is None else program.end.hint or _path_hint(plan, program.end.failure)
    if warning := clear_tree(plan):
        recorder.append(STDERR, f"{warning}\n".encode())
    end = program.end or ProgramEnd(code, program.oom_note, seconds, {}, [])
    event: RunEvent = metrics.stop_event()
    if not program.was_stopped(code):
        event = final_event(plan, code, end, metrics.as_result(), interrupted, recorder.lost_bytes, hint)
    try:
        plan.write(event)
    except ClusterError as problem:
        recorder.append(STDERR, f"{problem.message}\n".encode())
        code = code or 1
    if program.capture.streams and os.fork() == 0:  # the program has left background processes
        set_mark(NO_MARK)  # like those processes, it does not belong to the cluster
        daemonize.set_process_title(f"tfcluster: {plan.cluster} {plan.run} output")
        program.close_guard()
        program.capture.record_until_closed()
        os._exit(0)
    end_like(code)


def _path_hint(plan: RunPlan, failure: str) -> str:
    """Return a hint if servers may not have found a file of a script, which named it by a relative path."""
    path, folder = missing_path(failure), plan.options.parameters.get("cwd", "")
    if not path or not os.path.exists(os.path.join(folder, *PurePath(path).parts[:1])):
        return ""
    absolute = os.path.normpath(os.path.join(folder, path))
    return (
        f"If a server opens this file: servers do not run in the folder of the script, so give them absolute paths, "
        f"here {absolute}, and on several hosts paths that all of them have."
    )


def final_event(
    plan: RunPlan,
    code: int,
    end: ProgramEnd,
    metrics: Mapping[str, Any],
    interrupted: bool,
    lost_bytes: int,
    hint: str = "",
) -> ResultEvent | ErrorEvent:
    """Return the result or the error of a program. Those of a script have the exit code that a shell would report.

    `code` is negative if a signal ended the program. `metrics` is the field of the result that has its metrics, if it
    has reported any. `lost_bytes` is how much of the output could not be written. `hint` is that of an exception.
    """
    if end.error is not None:
        return ErrorEvent(end.error)
    reported = {**metrics, "value": end.result} if end.result is not None else metrics
    if code:
        return _error(plan, code, end.failure, reported, interrupted, hint)
    lost = [f"{lost_bytes} bytes of output could not be written"] if lost_bytes else []
    result = {"exit_code": 0, **reported} if plan.options.is_script else end.result
    return plan.result_event(result, end.seconds, devices=end.work, notes=[*end.notes, *lost])


def _error(
    plan: RunPlan, code: int, failure: str, reported: Mapping[str, Any], interrupted: bool, failure_hint: str
) -> ErrorEvent:
    name, exit_code = plan.options.script or plan.options.program, ExitCode.FAILED
    hint = f"What it printed: `tfcluster logs {plan.run}`."
    result: dict[str, Any] = {"exit_code": code if code > 0 else 128 - code}
    if interrupted and result["exit_code"] == ExitCode.INTERRUPTED:
        message, exit_code = f"{name} was interrupted", ExitCode.INTERRUPTED
    elif code < 0:
        result["signal"] = format_exit_status(-code)
        message = f"{name} was terminated by {result['signal']}{failure}"
    elif failure:
        message, hint = f"{name} failed: {failure}", failure_hint
    else:
        message = f"{name} ended with exit code {code}"
    error = ClusterError(message, hint=hint, exit_code=exit_code)
    return ErrorEvent(error.to_json(), {**result, **reported} if plan.options.is_script else None)
