"""Run a user's script like `python SCRIPT`, or a module like `python -m MODULE`.

This imports TensorFlow only where an option needs it: a script may set what TensorFlow reads when it is imported.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import runpy
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from tfcluster.core.text import summarize_error
from tfcluster.errors import TerminatedError
from tfcluster.programs.api import Context
from tfcluster.programs.script.strategies import refuse_multi_worker

_C_LONG = 2**63  # Python treats exit codes outside the range of a C long as -1


def run(
    context: Context,
    *,
    args: list[str],
    path: str | None,
    argument: str,
    cwd: str,
    seed: int | None,
    module: str | None = None,
    cold: bool = False,
) -> tuple[int, str]:
    """Run a script or a module to the end of its code.

    The caller still has to do what an interpreter does after that (its shutdown).

    Args:
        context: The run. If it has an upload, that is the script.
        path: Path of the script, from whose folder it imports; None for a module.
        argument: The path or the name of the module, as the user typed it.
        cwd: The folder in which the script starts. If it does not exist on this machine, that is the run's folder.
        seed: The user's seed for the generators of Python, NumPy and TensorFlow; None to leave them unseeded.
        cold: Whether the user asked for a fresh interpreter, which this one is then.

    Returns:
        The script's exit code, and one line that describes the exception that ended it (empty if there was none).
    """
    if context.log_placement:
        _log_placement_of_sessions(context)
    os.chdir(cwd if os.path.isdir(cwd) else context.folder)
    script = path if context.upload_path is None else str(context.upload_path)
    if script is None:
        start: tuple[str, ...] = ("-m", argument)
        folder = os.getcwd()
    else:
        start = (argument if context.upload_path is None else script,)
        folder = os.path.dirname(os.path.realpath(path or script))
    sys.argv = [start[0], *args]  # the name of a module is replaced by its path as soon as that is known
    sys.orig_argv = [sys.executable, *start, *args]
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH, which Python has from 3.11 on
        sys.path.insert(0, folder)
    for stream in (sys.stdout, sys.stderr):  # users follow the output live, also in a pipe
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if seed is not None:
        _seed_all(seed)
    words = ["-m", argument] if module else [argument]
    refuse_multi_worker(context.addresses, shlex.join(["tfcluster", "launch", *words, *args]))
    return _run_module(argument) if script is None else _run_script(script)


def _seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy (modulo 2**32) and TensorFlow, which the script may use."""
    import numpy as np
    import tensorflow as tf

    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)


def _log_placement_of_sessions(context: Context) -> None:
    """Patch Session so that every session of the script logs device placement, regardless of its config."""
    import tensorflow as tf

    context.notes.append(
        "operations of a script bear no mark of its run: the placements are those of every session of that time"
    )

    session = tf.compat.v1.Session
    begin = session.__init__

    def begin_logging(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        logging = tf.compat.v1.ConfigProto()
        if config is not None:
            logging.CopyFrom(config)
        logging.log_device_placement = True
        begin(self, target, graph, logging)

    session.__init__ = begin_logging


def _run_script(script: str) -> tuple[int, str]:
    """Run a script as `python SCRIPT` does; see `_run_as_main`."""

    def execute(main: ModuleType) -> None:
        main.__dict__.update(__file__=script, __loader__=SourceFileLoader("__main__", script), __cached__=None)
        with open(script, "rb") as file:
            source = file.read()
        code = compile(source, script, "exec", dont_inherit=True)
        try:
            exec(code, main.__dict__)
        finally:
            for stream in (
                sys.stderr,
                sys.stdout,
            ):  # as the interpreter does, before a traceback
                with contextlib.suppress(Exception):  # the script has closed it, or put another object in its place
                    stream.flush()

    return _run_as_main(execute, script)


def _run_module(name: str) -> tuple[int, str]:
    """Run a module by the function that the interpreter calls for `python -m MODULE`; see `_run_as_main`."""
    execute = runpy._run_module_as_main  # type: ignore[attr-defined]
    try:
        return _run_as_main(lambda _: execute(name), execute.__code__.co_filename)
    except _ModuleNotFoundError as error:
        print(f"{sys.executable}: {error}", file=sys.stderr)
        places = f"in {os.getcwd()} and among the packages of {sys.executable}"
        print(f"hint: Modules are searched {places}.", file=sys.stderr)
        return 1, str(error)


class _ModuleNotFoundError(Exception):
    """There is no module of the name that the user has typed, or it cannot be executed."""


def _run_as_main(execute: Callable[[ModuleType], object], first_file: str) -> tuple[int, str]:
    """Execute the interpreter's main module; return the exit code and the exception, as `run` describes them.

    The module stays `__main__`, so its variables are kept alive and destroyed as by `python SCRIPT`. `execute` gets the
    empty module and executes its code. Tracebacks begin with the code of `first_file`. A module that was not found
    raises _ModuleNotFoundError.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the driver blocks it while the program starts
        execute(main)
    except SystemExit as end:
        if isinstance(end.__context__, runpy._Error):  # type: ignore[attr-defined]
            raise _ModuleNotFoundError(str(end.__context__)) from None
        if end.code is None or isinstance(end.code, int):
            code = end.code or 0
            return (code if -_C_LONG <= code < _C_LONG else -1) & 0xFF, ""  # the kernel keeps only the low 8 bits
        print(end.code, file=sys.stderr)
        return 1, ""
    except KeyboardInterrupt as error:
        _print_traceback(error, first_file)
        return 128 + signal.SIGINT, ""
    except TerminatedError:
        raise
    except BaseException as error:  # also those that are not an Exception, such as asyncio's CancelledError
        _print_traceback(error, first_file)
        return 1, _describe(error)
    return 0, ""


def _describe(error: BaseException) -> str:
    """Describe an exception in one line."""
    return summarize_error(traceback.format_exception_only(error)[-1])


def _print_traceback(error: BaseException, first_file: str) -> None:
    """Print a script's exception as the interpreter does, with a traceback that begins at the code of a file.

    A SystemExit of the script's own `sys.excepthook` is passed on; the interpreter also exits in this case.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != first_file:
        trace = trace.tb_next
    script_error = error.with_traceback(trace)
    try:
        sys.excepthook(type(error), script_error, trace)
    except (SystemExit, TerminatedError):
        raise
    except BaseException as hook_error:
        if sys.stderr is not None:
            print("Error in sys.excepthook:", file=sys.stderr)
            traceback.print_exception(hook_error, chain=False)
            print("\nOriginal exception was:", file=sys.stderr)
            traceback.print_exception(script_error)
