"""What the process of a program does before and after it: its signals, its stacks, its context, its error."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import multiprocessing
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tfcluster import settings
from tfcluster.core.run_events import ErrorEvent
from tfcluster.errors import ClusterError, TerminatedError
from tfcluster.processes.runs.run_plan import STACKS, RunPlan

if TYPE_CHECKING:
    from tfcluster.programs.context import Context


def report_error(plan: RunPlan, error: ClusterError) -> int:
    """Write the event that explains why a program failed, or did not start; return the exit code."""
    try:
        plan.write(ErrorEvent(error.to_json()))
    except ClusterError as problem:  # the event cannot be written, so only the log can have the error
        print(error.message, problem.message, sep="\n", file=sys.stderr, flush=True)
    return 1


def title_of(plan: RunPlan) -> str:
    """Return the title of the process, which `ps` shows."""
    member = "" if plan.member is None else f" {plan.member['TFCLUSTER_TASK']}"
    return f"tfcluster: {plan.cluster} {plan.run}{member} program"


def hosts_of(plan: RunPlan) -> list[str]:
    """Return the hosts of the cluster's addresses."""
    return [address.rpartition(":")[0].strip("[]") for tasks in plan.addresses.values() for address in tasks]


def handle_signals() -> None:
    """Let SIGTERM raise TerminatedError and SIGINT KeyboardInterrupt, in this process and not in its forked children.

    A child that is terminated, as by multiprocessing, ends at once, as it would under `python SCRIPT`.
    """
    masks = threading.local()

    def block() -> None:  # a signal that a child receives before it has forgotten the handler would be lost
        masks.previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.previous)

    def forget_handler() -> None:
        if signal.getsignal(signal.SIGTERM) is _raise_terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    signal.signal(signal.SIGTERM, _raise_terminated)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget_handler)


def _raise_terminated(signal_number: int, frame: FrameType | None) -> None:
    raise TerminatedError


def begin_run(plan: RunPlan) -> Context:
    """Return the context of a run, which becomes the run of this process."""
    from tfcluster.programs.context import Context, set_current_run

    context = Context(
        plan.run,
        plan.addresses,
        tuple(plan.devices),
        plan.emit,
        head_address=plan.head,
        folder=plan.folder,
        output_folder=plan.output_folder,
        upload_path=plan.upload_path,
        log_placement=plan.options.log_placement,
        host=plan.host,
        ports=plan.ports,
        late_devices=tuple(plan.late_devices),
        missing=plan.missing,
        is_member=plan.member is not None,
        chose_devices=bool(plan.options.devices) or plan.options.gpus is not None,
    )
    set_current_run(context)
    return context


def redraw_randomness() -> None:
    """Redraw the random state that a fresh interpreter draws during imports, so that forked runs do not share it.

    Python reseeds `random` in each fork by itself, and TensorFlow seeds its generators when a process first needs them.
    The seed of Python's string hashes is drawn before any import and cannot be changed.
    """
    multiprocessing.current_process().authkey = os.urandom(32)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def flush_output() -> None:
    """Flush standard output and standard error, and ignore failures.

    The interpreter tries again when it shuts down, and reports the error.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, or an object that a script has put in the stream's place
            stream.flush()


def truncate(line: str) -> str:
    """Truncate the message of an exception, which may contain a whole array; the output has the full message."""
    return line if len(line) <= settings.RUN_ERROR_MAX_CHARS else f"{line[: settings.RUN_ERROR_MAX_CHARS]}..."


def enable_stack_dump(folder: Path) -> None:
    """Have each Python thread of this process, and of those that it forks, append its stack to a file at a signal.

    The handler is faulthandler's, in C: it also answers while C code holds the global interpreter lock, which a thread
    or a handler in Python could not. Without that lock, it must not read the stacks of other threads: of one that runs,
    it would follow a pointer to nowhere and end the process. So each thread gets a signal and writes its own. One that
    executes another program has no handler any more.

    Without a descriptor or space on the disk, the process has no stacks to show, and runs all the same.
    """
    with contextlib.suppress(OSError):
        fd = os.open(folder / STACKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A high number: one that the program closes, with descriptors that it has not opened, is seldom used again.
            limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], settings.STACK_FD_MAX)
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, limit - settings.STACK_FDS)
        finally:
            os.close(fd)
        faulthandler.register(settings.STACK_SIGNAL, file=high, all_threads=False)
