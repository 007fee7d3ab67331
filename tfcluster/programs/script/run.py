"""Run a user's script like `python SCRIPT`.

This imports TensorFlow only where an option needs it: a script may set what TensorFlow reads when it is imported.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import signal
import sys
import traceback
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from tfcluster.core.text import strip_forwarding
from tfcluster.errors import TerminatedError
from tfcluster.programs.api import Context

_C_LONG = 2**63  # Python treats exit codes outside the range of a C long as -1


def run(context: Context, *, args: list[str], path: str, argument: str, cwd: str, seed: int | None) -> tuple[int, str]:
    """Run a script to the end of its code.

    The caller still has to do what an interpreter does after that (its shutdown).

    Args:
        context: The run. If it has an upload, that is the script.
        args: The script's own arguments.
        path: Path of the script on the user's machine. If its folder exists on this machine, the script imports from
            it.
        argument: The path as the user typed it.
        cwd: The user's working directory. If it does not exist on this machine, the script starts in the run's folder.
        seed: The user's seed for the generators of Python, NumPy and TensorFlow; None to leave them unseeded.

    Returns:
        The script's exit code, and one line that describes the exception that ended it (empty if there was none).
    """
    if context.log_placement:
        _log_placement_of_sessions()
        context.notes.append(
            "operations of a script bear no mark of its run: the placements are those of every session of that time"
        )
    os.chdir(cwd if os.path.isdir(cwd) else context.folder)
    script = path if context.upload_path is None else str(context.upload_path)
    sys.argv = [argument if context.upload_path is None else script, *args]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    for stream in (sys.stdout, sys.stderr):  # users follow the output live, also in a pipe
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if seed is not None:
        _seed_all(seed)
    return _run_as_main(script)


def _seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy (modulo 2**32) and TensorFlow, which the script may use."""
    import numpy as np
    import tensorflow as tf

    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)


def _log_placement_of_sessions() -> None:
    """Patch Session so that every session of the script logs device placement, regardless of its config."""
    import tensorflow as tf

    session = tf.compat.v1.Session
    begin = session.__init__

    def begin_logging(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        logging = tf.compat.v1.ConfigProto()
        if config is not None:
            logging.CopyFrom(config)
        logging.log_device_placement = True
        begin(self, target, graph, logging)

    session.__init__ = begin_logging


def _run_as_main(script: str) -> tuple[int, str]:
    """Run a script as the interpreter's main module.

    The module stays `__main__`, so its variables are kept alive and destroyed like those of `python SCRIPT`.

    Returns:
        The exit code and the exception, as `run` describes them.
    """
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=script,
        __builtins__=builtins,
        __loader__=SourceFileLoader("__main__", script),
        __cached__=None,
    )
    sys.modules["__main__"] = main
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the driver blocks it while the program starts
        with open(script, "rb") as file:
            source = file.read()
        exec(compile(source, script, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            code = end.code or 0
            return (code if -_C_LONG <= code < _C_LONG else -1) & 0xFF, ""  # the kernel keeps only the low 8 bits
        print(end.code, file=sys.stderr)
        return 1, ""
    except KeyboardInterrupt as error:
        _print_traceback(error, script)
        return 128 + signal.SIGINT, ""
    except TerminatedError:
        raise
    except BaseException as error:  # also those that are not an Exception, such as asyncio's CancelledError
        _print_traceback(error, script)
        return 1, _describe(error)
    return 0, ""


def _describe(error: BaseException) -> str:
    """Describe an exception in one line."""
    return strip_forwarding(traceback.format_exception_only(error)[-1]).strip().splitlines()[0]


def _print_traceback(error: BaseException, script: str) -> None:
    """Print a script's exception as the interpreter does, with a traceback that begins at the script's own frame.

    Raises:
        SystemExit: The script's own `sys.excepthook` raised it; the interpreter also exits in this case.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
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
