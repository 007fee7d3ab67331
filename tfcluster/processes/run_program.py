"""The process that executes a run's program, or the user's script; a child of the run's driver."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tfcluster import settings
from tfcluster.errors import ClusterError, TerminatedError
from tfcluster.process_handle import MARK
from tfcluster.processes import daemonize
from tfcluster.processes.daemonize import no_proxy_env
from tfcluster.processes.port_isolation import OPEN_HINT, PortIsolationError
from tfcluster.processes.run_spec import ProgramEnd, RunSpec
from tfcluster.processes.seccomp import trap_listen
from tfcluster.protocol.codec import encode

if TYPE_CHECKING:
    from tfcluster.programs.api import Context

_FORWARDED = re.compile(r"From /job:\S+:\s*")
_TERMINATED = 128 + signal.SIGTERM


def main(spec: RunSpec, driver: int, link: socket.socket) -> NoReturn:
    """Execute the program of a run, and end the process.

    Args:
        spec: The run.
        driver: The pid of the driver, which is the parent process.
        link: The program's end of a socket pair with the driver.

    Raises:
        SystemExit: The program was a script. The interpreter shuts down regularly and runs destructors.
    """
    code = 1
    try:
        daemonize.set_parent_death_signal(driver)
        os.setpgid(0, 0)  # so that the driver can kill the program's children too
        daemonize.set_process_title(f"tfcluster: {spec.cluster} {spec.run} program")
        signal.signal(signal.SIGTERM, _raise_terminated)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if spec.peers is not None:
            _hand_over_trap(link)
        hosts = [address.rpartition(":")[0].strip("[]") for tasks in spec.addresses.values() for address in tasks]
        os.environ.update(no_proxy_env(os.environ, hosts))
        # Processes that the program starts and leaves behind do not belong to the cluster, which must not end them.
        os.environ.pop(MARK, None)
        if spec.traits.is_script:
            _run_script(spec, link)
        code = _run_program(spec)
    except TerminatedError:
        code = _TERMINATED
    except PortIsolationError as error:
        code = _report(spec, ClusterError(str(error), hint=OPEN_HINT))
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
    # The program has written its result by now. Exit without shutting the interpreter down, which would wait for
    # the threads of TensorFlow's sessions.
    _flush_output()
    os._exit(code)


def _hand_over_trap(link: socket.socket) -> None:
    """Trap listen() and send the trap to the driver, which restricts the ports of this process and of its children.

    The guard is the driver rather than a thread of this process, because listen() may be called by code that holds the
    global interpreter lock (GIL).

    Args:
        link: The program's end of a socket pair with the driver.

    Raises:
        PortIsolationError: The kernel does not allow this process to trap listen().
    """
    trap = trap_listen()
    socket.send_fds(link, [encode({})], [trap])
    os.close(trap)


def _begin_run(spec: RunSpec) -> Context:
    """Return the context of a run, which becomes the run of this process."""
    from tfcluster.programs.api import Context, set_current_run

    _reseed()
    context = Context(
        spec.run,
        spec.addresses,
        tuple(spec.devices),
        spec.emit,
        head_address=spec.head,
        folder=spec.folder,
        upload_path=spec.upload_path,
        log_placement=spec.log_placement,
    )
    set_current_run(context)
    return context


def _reseed() -> None:
    """Redraw the random state that a fresh interpreter draws during imports, so that forked runs do not share it.

    Python reseeds `random` in each fork by itself, and TensorFlow seeds its generators when a process first needs them.
    The seed of Python's string hashes is drawn before any import and cannot be changed.
    """
    multiprocessing.current_process().authkey = os.urandom(32)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def _run_function(spec: RunSpec) -> Callable[..., Any]:
    """Return the function `run` of the run's program.

    Raises:
        ClusterError: The program is not installed in this Python, or it is broken.
    """
    from tfcluster.programs.registry import find

    program = find(spec.program)
    if program is None:
        raise ClusterError(
            f"the program {spec.program!r} is not installed on the host of the head task ({spec.head})",
            hint=f"Programs run there; install the package: {sys.executable} -m pip install {spec.traits.package}",
        )
    function: Callable[..., Any] = program.load("run", "run")
    return function


def _run_program(spec: RunSpec) -> int:
    """Run a program that is no script, and write the final event of the run; return the exit code."""
    context = _begin_run(spec)
    try:
        result = _run_function(spec)(context, **spec.parameters)
        spec.emit(
            "result",
            run=spec.run,
            program=spec.program,
            state="succeeded",
            seconds=round(time.monotonic() - context.started_at, 6),
            result=result,
            devices=context.device_stats,
            notes=[*spec.notes, *context.notes],
        )
    except ClusterError as problem:
        return _report(spec, problem)
    except Exception as problem:
        traceback.print_exc()
        return _report(spec, ClusterError(_first_line(problem)))
    return 0


def _run_script(spec: RunSpec, link: socket.socket) -> NoReturn:
    """Run a script as the interpreter's main program, and shut the interpreter down as it does after a main program.

    Args:
        spec: The run.
        link: The program's end of a socket pair with the driver.

    Raises:
        SystemExit: Always, with the script's exit code.
    """
    context = _begin_run(spec)
    pid = os.getpid()
    failure = ""
    try:
        code, failure = _run_function(spec)(context, **spec.parameters)
        # These are the next steps of the interpreter's own shutdown: it waits for threads, then calls atexit handlers.
        # They are done here, before the run time is measured. When the interpreter repeats them, nothing is left to do.
        try:
            threading._shutdown()  # type: ignore[attr-defined]
        except TerminatedError:
            raise
        except BaseException:  # such as a KeyboardInterrupt, on which the interpreter stops waiting for threads
            traceback.print_exc()
    except TerminatedError:
        code = _TERMINATED
    atexit._run_exitfuncs()
    _flush_output()
    seconds = time.monotonic() - context.started_at
    if os.getpid() == pid:  # a child that the script has forked ends here too
        with contextlib.suppress(OSError):  # the script has closed descriptors that it did not open
            ProgramEnd(code, _truncate(failure), seconds, context.device_stats, context.notes).send(link)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(code)


def _flush_output() -> None:
    """Flush standard output and standard error, and ignore failures.

    The interpreter tries again when it shuts down, and reports the error.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, or an object that a script has put in the stream's place
            stream.flush()


def _report(spec: RunSpec, error: ClusterError) -> int:
    """Write the event that explains why a program failed; return the exit code."""
    try:
        spec.emit("error", error=error.to_json())
    except ClusterError as problem:  # the event cannot be written, so only the log can have the error
        print(error.message, problem.message, sep="\n", file=sys.stderr)
    return 1


def _first_line(problem: Exception) -> str:
    # TensorFlow puts a line in front of another task's error that only names the task that forwarded it. Skip it.
    text = [line for line in str(problem).strip().splitlines() if not _FORWARDED.fullmatch(line)]
    return _truncate(f"{type(problem).__name__}: {text[0]}") if text else type(problem).__name__


def _truncate(line: str) -> str:
    """Truncate the message of an exception, which may contain a whole array; the output has the full message."""
    return line if len(line) <= settings.RUN_ERROR_MAX_CHARS else f"{line[: settings.RUN_ERROR_MAX_CHARS]}..."


def _raise_terminated(signal_number: int, frame: FrameType | None) -> None:
    raise TerminatedError
