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
import sys
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NoReturn

from tfcluster import settings
from tfcluster.core.groups import Group
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.os import daemonize
from tfcluster.os.network import Address
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.process_mark import NO_MARK, set_mark
from tfcluster.processes.groups.coordinator import GroupCoordinator
from tfcluster.processes.groups.host import GroupHost
from tfcluster.processes.groups.link import connect
from tfcluster.processes.netinfo import addresses_of
from tfcluster.processes.runs.code_tree import clear_tree, enter_tree
from tfcluster.processes.runs.driver_process import (
    TERMINAL_SIGNALS,
    USER_SIGNALS,
    end_like,
    reap_orphans,
    wake_on_signals,
)
from tfcluster.processes.runs.latest_metrics import LatestMetrics
from tfcluster.processes.runs.run_output import STDERR
from tfcluster.processes.runs.run_spec import ProgramEnd, RunSpec, acquire_run
from tfcluster.processes.runs.script_outcome import final_event
from tfcluster.processes.runs.standard_streams import receive_stdin
from tfcluster.processes.runs.stored_output import OutputRecorder
from tfcluster.processes.runs.supervised_program import SupervisedProgram
from tfcluster.processes.servers.port_isolation import OPEN_HINT, PortIsolationError
from tfcluster.protocol.codec import Message


def main(spec: RunSpec, code_cache: Path) -> None:
    """Run the driver of a run. The driver exits as the program does: with its exit code, or by its signal.

    This function does not return. In the program's process it ends with the exception that ends the interpreter.

    Raises:
        SystemExit: In the program's process: the program was a script.
    """
    folder = spec.folder
    daemonize.detach(f"tfcluster: {spec.cluster} {spec.run}")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the program can receive it
    gc.enable()  # the fork server has disabled it; its descriptors are closed now, and its objects are frozen
    if not acquire_run(folder, ProcessHandle.from_pid(os.getpid())):
        os._exit(1)  # the agent has ended the run before its driver started
    try:
        cluster = None if spec.peers is None else addresses_of(Host(*each) for each in spec.peers.items())
        stdin = _receive_stdin(spec)
        spec = enter_tree(spec, code_cache)
    except OSError as error:
        _fail(spec, ClusterError(str(error)))
    except ClusterError as error:
        _fail(spec, error)
    daemonize.become_subreaper()
    if spec.group is not None:
        _drive_group(spec, spec.group, cluster)
    poll = select.poll()
    metrics = LatestMetrics()
    try:
        recorder = OutputRecorder(folder, spec.output_limit)
        program = SupervisedProgram(spec, poll, recorder, stdin, cluster, partial(_report, spec, metrics))
    except OSError as error:
        _fail(spec, ClusterError(f"no process could be started for the program of {spec.run}: {error.strerror}"))
    if stdin is not None:
        os.close(stdin)
    _supervise(spec, program, poll, recorder, metrics)


def _receive_stdin(spec: RunSpec) -> int | None:
    """Take over the command's standard input, and enter the cluster's private network, if there are such.

    The name of the command's socket is one of its network: the private one, if it was started in there.

    Return a descriptor of the standard input; None if the program gets none.
    """
    name = spec.caller.stdin if spec.caller is not None else None
    stdin = None if name is None else receive_stdin(name)
    if spec.network is not None:
        spec.network.enter()
        if name is not None and stdin is None:
            stdin = receive_stdin(name)
    if name is not None and stdin is None:
        raise ClusterError("the command's standard input cannot be taken over: the command has ended")
    return stdin


def _drive_group(spec: RunSpec, group: Group, cluster: Collection[Address] | None) -> NoReturn:
    """Coordinate the group that the run consists of or, if another host does that, start the members on this one.

    Raises:
        SystemExit: In the process of a member, when its script has ended.
    """
    try:
        if group.coordinator is None:
            GroupCoordinator(spec, group, cluster).run()
        host = GroupHost(spec, group, connect(group.coordinator, group.secret, spec.host), cluster)
        code = host.run()
        if host.is_coordinator_lost:
            raise ClusterError(f"the connection to the coordinator of {spec.run} is lost")
        notes = [warning] if (warning := clear_tree(spec)) else []
        end = ProgramEnd(0, "", 0.0, {}, notes)
        spec.emit(**final_event(spec, 0, end, {}, interrupted=False, lost_bytes=0))
        os._exit(code)
    except OSError as error:
        _fail(spec, ClusterError(f"{spec.run} cannot start on host {spec.host}: {error.strerror or error}"))
    except PortIsolationError as error:
        _fail(spec, ClusterError(f"host {spec.host}: {error}", hint=OPEN_HINT))
    except ClusterError as error:
        _fail(spec, error)


def _report(spec: RunSpec, metrics: LatestMetrics, event: Message) -> None:
    """Write an event of the script; on a full disk it is lost."""
    metrics.add(event)
    with contextlib.suppress(ClusterError):
        spec.emit(**event)


def _fail(spec: RunSpec, error: ClusterError) -> NoReturn:
    """Write the event of a run that failed before its program started, and exit."""
    try:
        spec.emit("error", error=error.to_json())
    except ClusterError as problem:  # the event cannot be written, so only the log can have the error
        print(error.message, problem.message, sep="\n", file=sys.stderr, flush=True)
    os._exit(1)


def _supervise(
    spec: RunSpec, program: SupervisedProgram, poll: select.poll, recorder: OutputRecorder, metrics: LatestMetrics
) -> NoReturn:
    """Supervise the program until its process has exited, then exit in the same way."""
    started_at = time.monotonic()
    interrupted = False
    wakeup = wake_on_signals()
    poll.register(wakeup, select.POLLIN)
    while not program.has_exited:
        # The folder is checked from time to time: without it, no agent could find the result.
        for fd, events in poll.poll(1000 * min(settings.DRIVER_POLL_SECONDS, program.seconds_left())):
            if program.handle(fd, events):
                continue
            numbers = wakeup.recv(1 << 10)
            for number in filter(TERMINAL_SIGNALS.__contains__, numbers):
                if number == signal.SIGWINCH:
                    program.capture.resize(spec.folder)
                program.signal_group(number)
            for number in filter(USER_SIGNALS.__contains__, numbers):
                program.signal(number)
            interrupted |= signal.SIGINT in numbers
            if signal.SIGTERM in numbers:
                program.terminate(settings.DRIVER_TERMINATE_SECONDS)
            reap_orphans([program.pid])
        program.kill_if_overdue()
        if not spec.folder.exists():
            program.kill()
        if recorder.is_full():
            time.sleep(settings.OUTPUT_FULL_SECONDS)
    _record_end(spec, program, recorder, metrics, time.monotonic() - started_at, interrupted=interrupted)


def _record_end(
    spec: RunSpec,
    program: SupervisedProgram,
    recorder: OutputRecorder,
    metrics: LatestMetrics,
    seconds: float,
    *,
    interrupted: bool,
) -> NoReturn:
    """Record how the program's process has ended, and exit in the same way."""
    code = program.reap()
    if warning := clear_tree(spec):
        recorder.append(STDERR, f"{warning}\n".encode())
    if spec.traits.is_script:
        end = program.end or ProgramEnd(code, "", seconds, {}, [])
        event = metrics.stop_event()
        if not program.was_stopped(code):
            event = final_event(spec, code, end, metrics.as_result(), interrupted, recorder.lost_bytes)
        try:
            spec.emit(**event)
        except ClusterError as problem:
            recorder.append(STDERR, f"{problem.message}\n".encode())
            code = code or 1
    if program.capture.streams and os.fork() == 0:  # the program has left background processes
        set_mark(NO_MARK)  # like those processes, it does not belong to the cluster
        daemonize.set_process_title(f"tfcluster: {spec.cluster} {spec.run} output")
        program.capture.record_until_closed()
        os._exit(0)
    end_like(code)
