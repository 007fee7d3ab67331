"""The process in which a run's program runs, a child of the run's driver."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from tfcluster.core.programs import SCRIPT
from tfcluster.errors import ClusterError, TerminatedError
from tfcluster.process_handle import MARK
from tfcluster.processes import daemonize
from tfcluster.processes.env import no_proxy_env
from tfcluster.processes.port_isolation import OPEN_HINT, PortIsolationError, trap_listen
from tfcluster.processes.run_driver import ProgramEnd, RunSpec
from tfcluster.protocol.codec import encode

if TYPE_CHECKING:
    from tfcluster.programs.context import Context

_PASSED_ON = re.compile(r"From /job:\S+:\s*")
_TERMINATED = 128 + signal.SIGTERM
_LONGEST_FAILURE = 2000  # characters


def main(job: RunSpec, driver: int, link: socket.socket) -> NoReturn:
    """Run the program of a job.

    Args:
        job: The job.
        driver: The pid of the driver, its parent.
        link: The program's end of a socket pair with the driver.

    Raises:
        SystemExit: The program was a script: the interpreter ends, with its destructors.
    """
    code = 1
    try:
        daemonize.set_parent_death_signal(driver)
        os.setpgid(0, 0)  # so that its children can be ended with it
        daemonize.set_process_title(f"tfcluster: {job.cluster} {job.run} program")
        signal.signal(signal.SIGTERM, _cancel)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if job.peers is not None:
            _hand_over_trap(link)
        hosts = [address.rpartition(":")[0].strip("[]") for tasks in job.addresses.values() for address in tasks]
        os.environ.update(no_proxy_env(os.environ, hosts))
        os.environ.pop(MARK, None)  # what the program executes and leaves behind is not the cluster's to end
        if job.program == SCRIPT:
            _run_script(job, link)
        code = _run_bundled(job)
    except TerminatedError:
        code = _TERMINATED
    except PortIsolationError as error:
        code = _report(job, ClusterError(str(error), hint=OPEN_HINT))
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
    # A bundled program has told its result: its interpreter's end would wait for the threads of TensorFlow's sessions.
    _flush_output()
    os._exit(code)


def _hand_over_trap(link: socket.socket) -> None:
    """Have the driver restrict who connects to each port on which this process or a child of it listens.

    The driver rather than a thread: listen() may be called by code that holds the interpreter's lock.

    Raises:
        PortIsolationError: The kernel does not let it.
    """
    trap = trap_listen()
    socket.send_fds(link, [encode({})], [trap])
    os.close(trap)


def _context(job: RunSpec) -> Context:
    from tfcluster.programs.context import Context, set_current_run

    context = Context(
        job.run,
        job.addresses,
        tuple(job.devices),
        job.emit,
        head=job.head,
        folder=job.run_folder,
        sent=job.sent_path,
        log_placement=job.log_placement,
    )
    set_current_run(context)
    return context


def _run_bundled(job: RunSpec) -> int:
    """Run a bundled program and write the event that tells how it ended; return the exit code."""
    from tfcluster.programs.random_state import reseed

    reseed()
    context = _context(job)
    try:
        program = importlib.import_module(f"tfcluster.programs.{job.program}")
        result = program.run(context, **job.parameters)
        job.emit(
            "result",
            run=job.run,
            program=job.program,
            state="succeeded",
            seconds=round(time.monotonic() - context.began, 6),
            result=result,
            devices=context.work,
            notes=[*job.notes, *context.notes],
        )
    except ClusterError as problem:
        return _report(job, problem)
    except Exception as problem:
        traceback.print_exc()
        return _report(job, ClusterError(_first_line(problem)))
    return 0


def _run_script(job: RunSpec, link: socket.socket) -> NoReturn:
    """Run a script as the interpreter's main program, and end the interpreter as after it.

    Raises:
        SystemExit: With its exit code.
    """
    from tfcluster.programs import script
    from tfcluster.programs.random_state import reseed

    reseed()
    context = _context(job)
    pid = os.getpid()
    failure = ""
    try:
        code, failure = script.run(context, **job.parameters)
        # What the interpreter itself does next; it finds nothing left to do when it gets there.
        try:
            threading._shutdown()  # type: ignore[attr-defined]
        except TerminatedError:
            raise
        except BaseException:  # as a KeyboardInterrupt, for which the interpreter stops waiting for threads
            traceback.print_exc()
    except TerminatedError:
        code = _TERMINATED
    atexit._run_exitfuncs()
    _flush_output()
    seconds = time.monotonic() - context.began
    if os.getpid() == pid:  # else a child that the script has forked, which ends here as well
        with contextlib.suppress(OSError):  # the script has closed what it does not know
            ProgramEnd(code, _cut(failure), seconds, context.work, context.notes).send(link)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(code)


def _flush_output() -> None:
    """Write what has been printed; the interpreter tries again at its end, and says what keeps it from that."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, or whatever a script has put in the stream's place
            stream.flush()


def _report(job: RunSpec, error: ClusterError) -> int:
    """Write the event that tells why a program failed; return the exit code."""
    try:
        job.emit("error", error=error.to_json())
    except ClusterError as problem:  # nothing can be told but to who reads the log
        print(error.message, problem.message, sep="\n", file=sys.stderr)
    return 1


def _first_line(problem: Exception) -> str:
    # TensorFlow heads the words of another task with a line that only says which task passed them on.
    text = [line for line in str(problem).strip().splitlines() if not _PASSED_ON.fullmatch(line)]
    return _cut(f"{type(problem).__name__}: {text[0]}") if text else type(problem).__name__


def _cut(line: str) -> str:
    """Bound what is told of an exception, which may have a whole array in it; the output has all of it."""
    return line if len(line) <= _LONGEST_FAILURE else f"{line[:_LONGEST_FAILURE]}..."


def _cancel(signal_number: int, frame: FrameType | None) -> None:
    raise TerminatedError
