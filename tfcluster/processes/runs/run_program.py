"""The process that executes a run's program, or the user's script; a child of the run's driver."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn

from tfcluster.core.environment import no_proxy_env
from tfcluster.core.text import strip_forwarding
from tfcluster.errors import ClusterError, ExitCode, TerminatedError
from tfcluster.os import daemonize
from tfcluster.process_mark import MARK, NO_MARK, set_mark
from tfcluster.processes.runs import stack_dump
from tfcluster.processes.runs.program_process import (
    begin_run,
    flush_output,
    handle_signals,
    hosts_of,
    load_function,
    redraw_randomness,
    title_of,
    truncate,
)
from tfcluster.processes.runs.run_script import start_script
from tfcluster.processes.runs.run_spec import RunSpec
from tfcluster.processes.runs.standard_streams import connect_streams
from tfcluster.processes.servers.listen_guard import trap_listen
from tfcluster.processes.servers.port_isolation import OPEN_HINT, PortIsolationError
from tfcluster.protocol.codec import encode


def main(spec: RunSpec, driver: int, link: socket.socket, outputs: tuple[int, int], stdin: int | None) -> NoReturn:
    """Execute the program of a run, and end the process.

    `driver` is the pid of the driver, which is the parent process. `outputs` are the program's standard output and
    standard error. `stdin` is None for /dev/null.

    Raises:
        SystemExit: The program was a script. The interpreter shuts down regularly and runs destructors.
    """
    code = 1
    try:
        daemonize.set_parent_death_signal(driver)
        os.setpgid(0, 0)  # so that the driver can signal the program's children too
        daemonize.set_process_title(title_of(spec))
        # Processes that the program starts and leaves behind do not belong to the cluster, which must not end them.
        set_mark(NO_MARK)
        connect_streams(stdin, outputs)
        handle_signals()
        stack_dump.enable(spec.folder)
        if spec.peers is not None:
            _hand_over_trap(link)
        if spec.traits.is_script:
            start_script(spec, link)
        os.environ.pop(MARK, None)
        os.environ.update(no_proxy_env(os.environ, hosts_of(spec)), TFCLUSTER_OUTPUT=str(spec.output_folder))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = _run_program(spec)
    except TerminatedError:
        code = ExitCode.TERMINATED
    except PortIsolationError as error:
        code = _report(spec, ClusterError(str(error), hint=OPEN_HINT))
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
    # The program has written its result by now. Exit without shutting the interpreter down, which would wait for
    # the threads of TensorFlow's sessions.
    flush_output()
    os._exit(code)


def _hand_over_trap(link: socket.socket) -> None:
    """Trap listen() and send the trap to the driver, which restricts the ports of this process and of its children.

    The guard is the driver rather than a thread of this process, because listen() may be called by code that holds the
    global interpreter lock (GIL).
    """
    trap = trap_listen()
    socket.send_fds(link, [encode({})], [trap])
    os.close(trap)


def _run_program(spec: RunSpec) -> int:
    """Run a program that is no script, and write the final event of the run; return the exit code."""
    context = begin_run(spec)
    redraw_randomness()
    try:
        result = load_function(spec)(context, **spec.parameters)
        seconds = time.monotonic() - context.started_at
        spec.emit(**spec.result_event(result, seconds, devices=context.device_stats, notes=context.notes))
    except ClusterError as problem:
        return _report(spec, problem)
    except Exception as problem:
        traceback.print_exc()
        return _report(spec, ClusterError(_first_line(problem)))
    return 0


def _report(spec: RunSpec, error: ClusterError) -> int:
    """Write the event that explains why a program failed; return the exit code."""
    try:
        spec.emit("error", error=error.to_json())
    except ClusterError as problem:  # the event cannot be written, so only the log can have the error
        print(error.message, problem.message, sep="\n", file=sys.stderr)
    return 1


def _first_line(problem: Exception) -> str:
    text = strip_forwarding(str(problem)).strip().splitlines()
    return truncate(f"{type(problem).__name__}: {text[0]}") if text else type(problem).__name__
