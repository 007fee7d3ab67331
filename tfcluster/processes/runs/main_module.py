"""Prepare a user's script to run like `python SCRIPT`, or a module like `python -m MODULE`.

This imports TensorFlow only for options that require it: a script may set what TensorFlow reads when it is imported.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pkgutil
import random
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tfcluster.core.text import summarize_error
from tfcluster.errors import TerminatedError
from tfcluster.processes.runs.strategies import refuse_multi_process

if TYPE_CHECKING:
    from tfcluster.programs.context import Context

_RUN_MODULE = runpy._run_module_as_main  # type: ignore[attr-defined]  # what the interpreter calls for `-m`
_C_LONG = 2**63  # Python treats exit codes outside the range of a C long as -1


def prepare_script(
    context: Context,
    *,
    args: list[str],
    path: str | None,
    argument: str,
    cwd: str,
    seed: int | None,
    module: str | None = None,
    cold: bool = False,
    python: str | None = None,
) -> MainModule:
    """Prepare this process to run a script or a module; the caller executes it.

    A script is at `path`, from whose folder it imports, or it is the run's upload; a module is the `argument`, as the
    user typed it. A folder or an archive with `__main__.py` at `path` imports from itself. It starts in `cwd` or, if
    that does not exist on this machine, in the run's folder. `seed` is for the generators of Python, NumPy and
    TensorFlow; None leaves them unseeded. `cold` and `python` have chosen the interpreter, which is this one.
    """
    os.chdir(cwd if os.path.isdir(cwd) else context.folder)
    script = path if context.upload_path is None else str(context.upload_path)
    has_main = script is not None and pkgutil.get_importer(script) is not None  # as the interpreter finds out
    if script is None:
        start: tuple[str, ...] = ("-m", argument)
        folder = os.getcwd()
    else:
        start = (argument if context.upload_path is None else script,)
        folder = script if has_main else os.path.dirname(os.path.realpath(path or script))
    sys.argv = [start[0], *args]  # the name of a module is replaced by its path as soon as that is known
    sys.orig_argv = [sys.executable, *start, *args]
    if has_main or not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH, which Python has from 3.11 on
        sys.path.insert(0, folder)
    for stream in (sys.stdout, sys.stderr):  # users follow the output live, also in a pipe
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if seed is not None:
        _seed_all(seed)
    refuse_multi_process(context.addresses, ["-m", argument] if module else [argument], args)
    return MainModule("__main__", None) if has_main else MainModule(argument, script)


def _seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy (modulo 2**32) and TensorFlow, which the script may use."""
    import numpy as np
    import tensorflow as tf

    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)


class MainModule:
    """The interpreter's main module: a script, or the module `name` if there is no script.

    The module `__main__` is that of a folder or an archive, which is the first of `sys.path`.

    The caller executes it, so that there are few calls below those of the script.
    """

    def __init__(self, name: str, script: str | None) -> None:
        self._name = name
        self._script = script
        #: Tracebacks begin with the code of this file.
        self._first_file = _RUN_MODULE.__code__.co_filename if script is None else script

    def load(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        """Return the function that executes the module, and its arguments.

        The module stays `__main__`, so its variables are kept alive and destroyed as by `python SCRIPT`.
        """
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        if self._script is None:
            return _RUN_MODULE, (self._name, self._name != "__main__")
        loader = SourceFileLoader("__main__", self._script)
        main.__dict__.update(__file__=self._script, __loader__=loader, __cached__=None)
        with open(self._script, "rb") as file:
            source = file.read()
        return exec, (compile(source, self._script, "exec", dont_inherit=True), main.__dict__)

    def flush(self) -> None:
        """Flush the output of a script as the interpreter does, in this order, before it prints a traceback."""
        for stream in (sys.stderr, sys.stdout) if self._script is not None else ():
            with contextlib.suppress(Exception):  # the script has closed it, or put another object in its place
                stream.flush()

    def show_error(self, error: BaseException) -> tuple[int, str]:
        """Print the exception that has ended the module, as the interpreter does.

        Return the exit code, and one line that describes the exception; empty if the module has ended by itself.
        """
        if isinstance(error, SystemExit):
            if isinstance(error.__context__, runpy._Error):  # type: ignore[attr-defined]
                return self._show_missing(error.__context__)
            if error.code is None or isinstance(error.code, int):
                code = error.code or 0
                return (code if -_C_LONG <= code < _C_LONG else -1) & 0xFF, ""  # the kernel keeps only the low 8 bits
            print(error.code, file=sys.stderr)
            return 1, ""
        _print_traceback(error, self._first_file)
        return (128 + signal.SIGINT, "") if isinstance(error, KeyboardInterrupt) else (1, _describe(error))

    def _show_missing(self, error: BaseException) -> tuple[int, str]:
        """Say that there is no module of this name, or that it cannot be executed."""
        print(f"{sys.executable}: {error}", file=sys.stderr)
        if self._name != "__main__":
            print(f"hint: It must be in {os.getcwd()} or a package of {sys.executable}.", file=sys.stderr)
        return 1, str(error)


def _describe(error: BaseException) -> str:
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
