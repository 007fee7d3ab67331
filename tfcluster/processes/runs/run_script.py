"""Run a user's script in a program's process, in the interpreter that it was forked from or in a fresh one.

A warm interpreter has read the environment variables that Python and libraries read while they are loaded, and has
imported TensorFlow and what TensorFlow imports.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import contextlib
import errno
import inspect
import json
import os
import pkgutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn
from zipimport import zipimporter

from tfcluster import boot, settings
from tfcluster.core.environment import no_proxy_env
from tfcluster.core.groups import DISTRIBUTION_VARIABLES
from tfcluster.core.text import summarize_error
from tfcluster.errors import ClusterError, ExitCode, TerminatedError
from tfcluster.os import daemonize, libc
from tfcluster.process_mark import MARK
from tfcluster.processes.runs import interpreters, load_variables
from tfcluster.processes.runs.import_advice import advise_on_import
from tfcluster.processes.runs.program_process import (
    begin_run,
    enable_stack_dump,
    flush_output,
    handle_signals,
    hosts_of,
    redraw_randomness,
    title_of,
    truncate,
)
from tfcluster.processes.runs.run_plan import INTERRUPT_HANDLED, ProgramEnd, RunPlan
from tfcluster.processes.runs.streams import open_streams
from tfcluster.protocol.codec import Message, encode
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.reporting import MetricReporter, set_reporter, stop_reporting

_Handler = Callable[[int, Any], Any] | int | None
_SLOW_START = (
    "{} beside the script has the name of a module that TensorFlow imports: the script starts in a fresh interpreter, "
    "which takes about two seconds more"
)
_NO_PLACEMENTS = (
    "no placements are shown: only tfcluster.map_reduce and tfcluster.sessions report them; those of a session with "
    "log_device_placement=True are in the servers' logs, which `tfcluster logs --placement` shows"
)


def watch_interrupts(on_handled: Callable[[], None]) -> None:
    """Have a function called each time that Python is about to call a handler of SIGINT, whichever the program sets.

    Python runs no handler as long as its main thread is inside C++. The kernel calls the interpreter's own handler at
    once, which only notes the signal, so a signal that has arrived does not show that it is handled.
    The program sees its own handlers alone: the functions of the module `signal` look these two up.
    """
    set_handler, get_handler = _signal.signal, _signal.getsignal

    def set_watched(number: int, handler: _Handler) -> Any:
        is_watched = number == signal.SIGINT and callable(handler)
        return _own_handler(set_handler(number, _WatchedHandler(handler, on_handled) if is_watched else handler))

    def get_watched(number: int) -> Any:
        return _own_handler(get_handler(number))

    _signal.signal, _signal.getsignal = set_watched, get_watched
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))


class _WatchedHandler:
    """A handler of a signal. Its caller reads `__call__` first, so that no call of ours is below the handler's own."""

    def __init__(self, handler: Any, on_handled: Callable[[], None]) -> None:
        self.handler = handler
        self._on_handled = on_handled

    @property
    def __call__(self) -> Any:
        self._on_handled()
        return self.handler


def _own_handler(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _WatchedHandler) else handler


# The shutdown of an interpreter clears every module in `sys.modules`. The 3,000 modules of TensorFlow are memory that a
# forked script shares with the fork server; to clear them copies 28,000 pages, which took half of the time of a script
# that does nothing. So the modules that the fork server has imported are left out.
#: Modules whose globals may own what a script has not closed: a connection to servers that is to be closed,
#: a session, a summary writer that is to be flushed, a thread. They are cleared as in any interpreter.
_STATEFUL = {
    "__main__",
    "builtins",
    "sys",
    "threading",
    "keras.src.backend",  # of Keras 2, in which TensorFlow up to 2.15 has it
    "keras.src.backend.common.global_state",
    "tensorflow.python.eager.context",
    "tensorflow.python.framework.ops",
    "tensorflow.python.framework.stack",
    "tensorflow.python.keras.backend",
    "tensorflow.python.ops.summary_ops_v2",
}
# It keeps the modules alive: no other module refers to this dict, and a driver excludes it from garbage collection.
_kept_modules: dict[str, ModuleType] = {}


def keep_modules() -> None:
    """Note the modules that are imported now; for the fork server, before it forks a driver."""
    _kept_modules.update((name, module) for name, module in sys.modules.items() if name not in _STATEFUL)


def exempt_modules() -> None:
    """Exempt the noted modules from the shutdown of this interpreter.

    This is for a script, when all of its own code has run, except destructors and daemon threads.
    """
    for name, module in _kept_modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


if TYPE_CHECKING:
    from tfcluster.processes.runs.main_module import MainModule
    from tfcluster.programs.context import Context


class ScriptStart(SystemExit):
    """Leaves all calls of the driver in the process of a script, which is then run with nothing else on the stack.

    `run` runs the script, and ends with a SystemExit.
    """

    def __init__(self, run: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.run = run


def prepare(plan_fd: str, link_fd: str) -> Callable[[], NoReturn]:
    """Return the function that runs a script in a fresh interpreter, which has replaced the process of the script.

    `plan_fd` is the descriptor of a file with the plan of the run, and `link_fd` that of the program's end of a
    socket pair with the driver.
    """
    with open(int(plan_fd), "rb") as file:
        plan = decode(RunPlan, json.loads(file.read()))
    os.set_inheritable(int(link_fd), False)
    load_variables.keep_environment()
    daemonize.set_process_title(title_of(plan))
    handle_signals()
    enable_stack_dump(plan.folder)
    try:
        return _prepare(plan, begin_run(plan), socket.socket(fileno=int(link_fd)))
    except TerminatedError:  # before anything of the script has run
        sys.exit(ExitCode.TERMINATED)


def start_program(plan: RunPlan, link: socket.socket) -> NoReturn:
    """Give this process the environment of the run, and run the program: a script here or in a fresh interpreter.

    A script takes over what its command has. A bundled program needs nothing of it, and so always runs here.

    Raises ScriptStart: to run a script here; ClusterError: the Python that the user has named cannot run it.
    """
    from tfcluster.processes.runs.script_environment import describe_cluster, describe_run

    caller = plan.caller
    context = begin_run(plan)
    inherited = load_variables.kept_environment() if caller is None else caller.environment
    # In a member that launches others, they would find its own neighbors.
    own = {"TFCLUSTER_SEED", *(DISTRIBUTION_VARIABLES if plan.member is not None else ())}
    environment = {
        **{name: value for name, value in inherited.items() if name not in own},
        "CUDA_VISIBLE_DEVICES": "-1",  # the GPUs belong to the servers
        **no_proxy_env(inherited, hosts_of(plan)),
        "TFCLUSTER_CLUSTER": plan.cluster,
        **describe_run(context, plan.options.parameters.get("seed")),
        **(plan.member or {}),
    }
    if plan.options.is_script and plan.member is None:
        environment |= describe_cluster(context)
    # Processes that the script starts and leaves behind do not belong to the cluster, which must not end them.
    environment.pop(MARK, None)
    if caller is not None:
        os.umask(caller.umask)
    if plan.options.is_script:
        _replace_interpreter(plan, environment, link)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None  # imports have determined it, without this TMPDIR
    redraw_randomness()
    if not plan.options.is_script:
        run_bundled(plan, context, link)
    open_streams()
    raise ScriptStart(_prepare(plan, context, link))


def _replace_interpreter(plan: RunPlan, environment: Mapping[str, str], link: socket.socket) -> None:
    """Replace this process by the interpreter that a script is to have, unless this is the one."""
    cwd = plan.options.parameters["cwd"]
    if os.path.isdir(cwd):  # a Python makes relative folders of $PYTHONPATH absolute when it starts
        os.chdir(cwd)
    python, note = interpreters.choose(plan, environment)
    notes = [note] if note else []
    is_fresh = python is not None or needs_fresh_interpreter(environment, plan)
    if is_fresh and python is None:
        is_asked = plan.options.parameters.get("cold") or "tensorflow" not in sys.modules
        if not is_asked and (hiding := _find_hiding_module(_folder_of(plan))):
            notes.append(_SLOW_START.format(hiding))
    for each in notes:
        _sender(link)({"note": each}, True)
    if is_fresh:
        replace_process(plan, environment, link, python)


def run_bundled(plan: RunPlan, context: Context, link: socket.socket) -> NoReturn:
    """Run a bundled program in this process, and end the process.

    Its interpreter is not shut down, which would wait for the threads of TensorFlow's sessions.
    """
    from tfcluster.programs import load

    set_reporter(MetricReporter(_sender(link)))
    code = 1
    error: ClusterError | None = None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, settings.HOST_END_SIGNAL})
        load(plan.options.program).run(**plan.options.parameters)
        code = 0
    except TerminatedError:
        code = ExitCode.TERMINATED
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except ClusterError as problem:
        error = problem
    except Exception as problem:
        traceback.print_exc()
        error = ClusterError(truncate(summarize_error(f"{type(problem).__name__}: {problem}")))
    seconds = time.monotonic() - context.started_at
    context.flush_progress()
    stop_reporting()
    failure = None if error is None else error.to_json()
    ProgramEnd(code, "", seconds, context.device_stats, context.notes, context.result, failure).send(link)
    flush_output()
    os._exit(code)


def _prepare(plan: RunPlan, context: Context, link: socket.socket) -> Callable[[], NoReturn]:
    """Return the function that runs a script in this interpreter."""
    from tfcluster.processes.runs.main_module import prepare_script

    main = prepare_script(context, **plan.options.parameters)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the function is called, which handles it
    _report_to_driver(plan, link)
    return partial(_run_script, main, context, link, partial(advise_on_import, plan, _folder_of(plan)))


def _run_script(
    main: MainModule, context: Context, link: socket.socket, advise: Callable[[BaseException], str]
) -> NoReturn:
    """Run a script as the interpreter's main program, and shut the interpreter down as it does after a main program.

    `advise` returns what to do about the exception that ends the script, if that is known.
    The script's code is called from here: tracebacks of the script, and of the graphs that it makes, list this call.
    Raises SystemExit: always, with the script's exit code.
    """
    pid = os.getpid()
    code, failure, hint = 0, "", ""
    try:
        try:
            # The driver blocks the first two while the program starts.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, settings.HOST_END_SIGNAL, signal.SIGTERM})
            execute, arguments = main.load()
            try:
                execute(*arguments)
            finally:
                main.flush()
        except TerminatedError:
            raise
        except BaseException as error:  # also those that are not an Exception, such as asyncio's CancelledError
            code, failure = main.show_error(error)
            hint = advise(error)
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
            context.flush_progress()
            stop_reporting()
            if context.log_placement and not context.placed:
                context.notes.append(_NO_PLACEMENTS)
            work, notes = context.device_stats, context.notes
            ProgramEnd(code, truncate(failure), seconds, work, notes, context.result, hint=hint).send(link)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    exempt_modules()
    raise SystemExit(code)


def _report_to_driver(plan: RunPlan, link: socket.socket) -> None:
    """Have `tfcluster.metric` report to the driver of this process, and Python that it handles an interrupt.

    Variables that the script sets too late are reported too.
    """
    send, pid = _sender(link), os.getpid()

    def report_handled() -> None:
        if os.getpid() == pid:  # not in a child that the script has forked
            send(INTERRUPT_HANDLED, False)

    def report_late(variable: str) -> None:
        if os.getpid() == pid:
            send({"note": _describe_late(variable, plan)}, True)

    watch_interrupts(report_handled)
    if "tensorflow" in sys.modules:
        load_variables.watch(report_late)
    set_reporter(MetricReporter(send))


def _sender(link: socket.socket) -> Callable[[Message, bool], bool]:
    """Return the function that sends messages to the driver, for `MetricReporter`."""
    own = os.fstat(link.fileno()).st_ino

    def send(message: Message, may_wait: bool) -> bool:
        try:  # a script may close descriptors that it did not open, and the number may be that of another file since
            if os.fstat(link.fileno()).st_ino != own:
                return True
            return link.send(encode(message), 0 if may_wait else socket.MSG_DONTWAIT) > 0
        except BlockingIOError:  # the driver does not get to read; the next one may be sent, or the last one at the end
            return False
        except OSError:
            return True

    return send


def _describe_late(variable: str, plan: RunPlan) -> str:
    """Return the note about a variable that a script has set too late, with what to do instead."""
    if not _kept_modules:
        advice = "--seed imports it before the script; set the variable before the command starts"
    elif plan.member is not None:
        advice = "name the variable in the script itself, and it is imported only when the script does so"
    else:
        advice = "with `tfcluster run script --cold`, it is imported only when the script does so"
    return f"{variable} was set when TensorFlow was already imported, so it might have no effect: {advice}"


def needs_fresh_interpreter(environment: Mapping[str, str], plan: RunPlan) -> bool:
    """Return whether a script could tell this interpreter, which was forked from a warm one, from a fresh one.

    That is so if a variable that is read early differs or is named in the script, which may set it before it imports
    TensorFlow; and if a module beside the script has the name of one that is imported already. The user may also ask
    for a fresh one. A variable that other code than the script sets cannot be foreseen: a note says when that happens.
    """
    if plan.options.parameters.get("cold") or load_variables.differ(environment):
        return True
    module, folder = plan.options.parameters.get("module"), _folder_of(plan)
    if module is None:
        script = _script_of(plan)
        if isinstance(pkgutil.get_importer(str(script)), zipimporter):  # what it has is compressed
            return True
        files = [script / "__main__.py" if script.is_dir() else script]
    elif module in sys.modules or f"{module}.__main__" in sys.modules:
        return True
    else:
        files = _files_of_module(module, folder)
    try:
        is_set = any(load_variables.are_named(file.read_bytes()) for file in files)
    except OSError:  # the script will fail
        return False
    return is_set or bool(_find_hiding_module(folder))


def _script_of(plan: RunPlan) -> Path:
    return plan.upload_path or Path(plan.options.parameters["path"])


def _folder_of(plan: RunPlan) -> Path:
    """Return the folder from which a script imports its own modules."""
    if plan.options.parameters.get("module") is not None:
        return Path(plan.options.parameters["cwd"])
    script = _script_of(plan)
    return Path(os.path.realpath(script / "__main__.py" if script.is_dir() else script)).parent


def _files_of_module(module: str, folder: Path) -> list[Path]:
    """Return the files that `python -m MODULE` executes in a folder: those of its packages, and its own.

    They are found without executing any, as importing the module's package would. What is not found is left out.
    """
    files, path = [], [str(folder), *sys.path]
    for name in [*module.split("."), "__main__"]:
        if (spec := PathFinder.find_spec(name, path)) is None:
            break
        if spec.origin is not None:
            files.append(Path(spec.origin))
        if spec.submodule_search_locations is None:
            break
        path = list(spec.submodule_search_locations)
    return files


# A fresh interpreter imports the cluster's own tfcluster, even if another one is beside the script.
_NEVER_HIDDEN = ("__main__", "tfcluster")


def _find_hiding_module(folder: Path) -> str:
    """Return the file in the script's folder that has the name of an imported module; an empty string if none has."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            is_package = os.path.exists(f"{entry.path}/__init__.py")
            name = entry.name if is_package else inspect.getmodulename(entry.name)
            if name in sys.modules and name not in _NEVER_HIDDEN:  # of a package too: it is imported before its modules
                return entry.name
    return ""


def replace_process(
    plan: RunPlan, environment: Mapping[str, str], link: socket.socket, python: boot.Interpreter | None = None
) -> NoReturn:
    """Replace this process by a fresh interpreter that runs the script, by default by one of the same Python."""
    run = libc.memfd_create("run")
    with open(run, "wb", closefd=False) as file:
        file.write(json.dumps(to_json(plan)).encode())
    os.lseek(run, 0, os.SEEK_SET)
    for fd in (run, link.fileno()):
        os.set_inheritable(fd, True)
    try:
        boot.exec_function(__name__, prepare.__name__, [str(run), str(link.fileno())], environment, python)
    except OSError as error:
        name = sys.executable if python is None else python.executable
        hint = "`tfcluster down` and `tfcluster up` start the cluster with the files as they are now."
        message = f"{name} cannot be started for the script: {error.filename or name}: {error.strerror}"
        raise ClusterError(message, hint=hint if error.errno == errno.ESTALE else "") from error
