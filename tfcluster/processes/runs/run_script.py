"""Run a user's script in a program's process, in the interpreter that it was forked from or in a fresh one."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import threading
import time
import traceback
from typing import NoReturn

from tfcluster.core.environment import no_proxy_env
from tfcluster.errors import ExitCode, TerminatedError
from tfcluster.os import daemonize
from tfcluster.process_mark import MARK
from tfcluster.processes.runs import fresh_interpreter, stack_dump
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
from tfcluster.processes.runs.run_spec import ProgramEnd, RunSpec
from tfcluster.processes.runs.standard_streams import open_streams
from tfcluster.protocol.codec import Message, encode
from tfcluster.protocol.serialization import decode
from tfcluster.reporting import MetricReporter, set_reporter


def resume(spec_fd: str, link_fd: str) -> NoReturn:
    """Run a script in a fresh interpreter, which has replaced the process that `main` had prepared.

    `spec_fd` is the descriptor of a file with the description of the run, and `link_fd` that of the program's end of a
    socket pair with the driver.
    """
    with open(int(spec_fd), "rb") as file:
        # Leniently: a driver of tfcluster 0.1.0 executes this code if the package was replaced since its start.
        spec = decode(RunSpec, json.loads(file.read()), lenient=True)
    os.set_inheritable(int(link_fd), False)
    daemonize.set_process_title(title_of(spec))
    handle_signals()
    stack_dump.enable(spec.folder)
    _run_script(spec, socket.socket(fileno=int(link_fd)))


def start_script(spec: RunSpec, link: socket.socket) -> NoReturn:
    """Give this process what the script takes over from the command, and run it here or in a fresh interpreter."""
    from tfcluster.programs.script.environment import describe_cluster, describe_run

    caller = spec.caller
    context = begin_run(spec)
    inherited = os.environ if caller is None else caller.environment
    environment = {
        **inherited,
        "CUDA_VISIBLE_DEVICES": "-1",  # the GPUs belong to the servers
        **no_proxy_env(inherited, hosts_of(spec)),
        "TFCLUSTER_CLUSTER": spec.cluster,
        **describe_run(context, spec.parameters["seed"]),
        **(describe_cluster(context) if spec.member is None else spec.member),
    }
    # Processes that the script starts and leaves behind do not belong to the cluster, which must not end them.
    environment.pop(MARK, None)
    if caller is not None:
        os.umask(caller.umask)
    if fresh_interpreter.is_needed(environment, spec):
        fresh_interpreter.replace_process(spec, environment, link)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    redraw_randomness()
    open_streams()
    _run_script(spec, link)


def _run_script(spec: RunSpec, link: socket.socket) -> NoReturn:
    """Run a script as the interpreter's main program, and shut the interpreter down as it does after a main program.

    Raises:
        SystemExit: Always, with the script's exit code.
    """
    context = begin_run(spec)
    reporter = _report_metrics(spec, link)
    pid = os.getpid()
    failure = ""
    try:
        code, failure = load_function(spec)(context, **spec.parameters)
        # These are the next steps of the interpreter's own shutdown: it waits for threads, then calls atexit handlers.
        # They are done here, before the run time is measured. When the interpreter repeats them, nothing is left to do.
        try:
            threading._shutdown()  # type: ignore[attr-defined]
        except TerminatedError:
            raise
        except BaseException:  # such as a KeyboardInterrupt, on which the interpreter stops waiting for threads
            traceback.print_exc()
    except TerminatedError:
        code = ExitCode.TERMINATED
    atexit._run_exitfuncs()
    flush_output()
    seconds = time.monotonic() - context.started_at
    if os.getpid() == pid:  # a child that the script has forked ends here too
        with contextlib.suppress(OSError):  # the script has closed descriptors that it did not open
            reporter.flush()
            ProgramEnd(code, truncate(failure), seconds, context.device_stats, context.notes).send(link)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(code)


def _report_metrics(spec: RunSpec, link: socket.socket) -> MetricReporter:
    """Have `tfcluster.metric` report to the driver of this process.

    The reporter has to be flushed at the end.
    """
    own = os.fstat(link.fileno()).st_ino

    def send(event: Message, may_wait: bool) -> bool:
        try:  # a script may close descriptors that it did not open, and the number may be that of another file since
            if os.fstat(link.fileno()).st_ino != own:
                return True
            return link.send(encode(event), 0 if may_wait else socket.MSG_DONTWAIT) > 0
        except BlockingIOError:  # the driver does not get to read; the next one may be sent, or the last one at the end
            return False
        except OSError:
            return True

    reporter = MetricReporter(send, {} if spec.member is None else {"task": spec.member["TFCLUSTER_TASK"]})
    set_reporter(reporter)
    return reporter
