"""Run a user's script like `python SCRIPT`, in the run's driver and with TF_CONFIG set for the cluster."""

from __future__ import annotations

import builtins
import io
import json
import os
import random
import signal
import socket
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfcluster.errors import TerminatedError
from tfcluster.programs.api import Context

_C_LONG = 2**63  # Python treats exit codes outside the range of a C long as -1


def run(context: Context, *, args: list[str], path: str, cwd: str, seed: int | None) -> tuple[int, str]:
    """Run the uploaded script to the end of its code.

    The caller still has to do what an interpreter does after that (its shutdown).

    Args:
        context: The run.
        args: The script's own arguments.
        path: Path of the script on the user's machine. If its folder exists on this machine, the script imports from
            it.
        cwd: The user's working directory. If it does not exist on this machine, the script starts in the run's folder.
        seed: The user's seed for the generators of Python, NumPy and TensorFlow; None to leave them unseeded.

    Returns:
        The script's exit code, and one line that describes the exception that ended it (empty if there was none).
    """
    assert context.upload_path is not None, "a script is always uploaded"
    os.environ.update(environment(context, seed))
    if context.log_placement:
        _log_placement_of_sessions()
        context.notes.append(
            "operations of a script bear no mark of its run: the placements are those of every session of that time"
        )
    os.chdir(cwd if os.path.isdir(cwd) else context.folder)
    sys.argv = [str(context.upload_path), *args]
    sys.path.insert(0, os.path.dirname(path))
    for stream in (sys.stdout, sys.stderr):  # users follow the output live, although it is a file
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if seed is not None:
        _seed_all(seed)
    return _run_as_main(context.upload_path)


def _seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy (modulo 2**32) and TensorFlow, which the script may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)


def _log_placement_of_sessions() -> None:
    """Patch Session so that every session of the script logs device placement, regardless of its config."""
    session = tf.compat.v1.Session
    begin = session.__init__

    def begin_logging(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        logging = tf.compat.v1.ConfigProto()
        if config is not None:
            logging.CopyFrom(config)
        logging.log_device_placement = True
        begin(self, target, graph, logging)

    session.__init__ = begin_logging


def environment(context: Context, seed: int | None) -> dict[str, str]:
    """Return the environment variables that describe the cluster to a script.

    They are TF_CONFIG, in which the script is the chief, and tfcluster's own variables. A strategy starts a server in
    its chief, so the chief's address is a free port, also in a cluster that has a server for a job `chief`: strategies
    pass the addresses of TF_CONFIG on to the servers. Sessions connect to that server, or to another head task's.

    Args:
        context: The run.
        seed: The user's seed; None if there is none.
    """
    host = context.head_address.rpartition(":")[0]
    master = f"grpc://{context.head_address}"
    cluster = {**context.addresses, "chief": [f"{host}:{_free_port()}"]}
    task = {"type": "chief", "index": 0}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "session_master": master}),
        "TFCLUSTER_MASTER": master,
        "TFCLUSTER_RUN": context.run,
        "TFCLUSTER_DEVICES": ",".join(context.devices),
        **({} if seed is None else {"TFCLUSTER_SEED": str(seed)}),
    }


def _free_port() -> int:
    """Return a free port, for the server that TensorFlow starts in a script that is the chief."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _run_as_main(script: Path) -> tuple[int, str]:
    """Run a script as the interpreter's main module.

    The module stays `__main__`, so its variables are kept alive and destroyed like those of `python SCRIPT`.

    Returns:
        The exit code and the exception, as `run` describes them.
    """
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=str(script),
        __builtins__=builtins,
        __loader__=SourceFileLoader("__main__", str(script)),
        __cached__=None,
    )
    sys.modules["__main__"] = main
    try:
        exec(compile(script.read_bytes(), str(script), "exec", dont_inherit=True), main.__dict__)
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
        return 1, traceback.format_exception_only(error)[-1].strip()
    return 0, ""


def _print_traceback(error: BaseException, script: Path) -> None:
    """Print a script's exception as the interpreter does, with a traceback that begins at the script's own frame.

    Raises:
        SystemExit: The script's own `sys.excepthook` raised it; the interpreter also exits in this case.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
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
