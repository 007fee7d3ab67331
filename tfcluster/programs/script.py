"""A user's own script, run as `python SCRIPT` would run it, beside the cluster and knowing of it."""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import socket
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfcluster.errors import TerminatedError
from tfcluster.programs.context import Context
from tfcluster.programs.random_state import seed_all

_C_LONG = 2**63  # exit codes from there on are -1 to Python


def run(context: Context, *, args: list[str], path: str, cwd: str, seed: int | None) -> tuple[int, str]:
    """Run the script that was sent, up to the end of its own code: what an interpreter does after that is left to do.

    Args:
        context: The run.
        args: The script's own arguments.
        path: Where the script is on the user's machine; where its folder is here too, it imports from there.
        cwd: The folder that the user was in; where there is none here, the script starts in the run's folder.
        seed: What the user gave as seed; with one, the generators of Python, NumPy and TensorFlow are seeded.

    Returns:
        The script's exit code, and in a line the exception that ended it, empty where none did.
    """
    assert context.sent is not None, "a script is always sent"
    os.environ.update(environment(context, seed))
    if context.log_placement:
        _log_placement_of_sessions()
        context.notes.append(
            "operations of a script bear no mark of its run: the placements are those of every session of that time"
        )
    os.chdir(cwd if os.path.isdir(cwd) else context.folder)
    sys.argv = [str(context.sent), *args]
    sys.path.insert(0, os.path.dirname(path))
    for stream in (sys.stdout, sys.stderr):  # somebody reads along, though it is a file
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if seed is not None:
        seed_all(seed)
    return _run_as_main(context.sent)


def _log_placement_of_sessions() -> None:
    """Have every session that the script opens log its placement, whatever config the script gives it."""
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
    """What tells a script of its cluster: TF_CONFIG, in which the script is the chief, and our own variables."""
    cluster = dict(context.addresses)
    if "chief" not in cluster:
        host = context.head.rpartition(":")[0]
        cluster["chief"] = [f"{host}:{_free_port()}"]
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}),
        "TFCLUSTER_MASTER": f"grpc://{context.head}",
        "TFCLUSTER_RUN": context.run,
        "TFCLUSTER_DEVICES": ",".join(context.devices),
        **({} if seed is None else {"TFCLUSTER_SEED": str(seed)}),
    }


def _free_port() -> int:
    """A port that nobody listens at, for the server that TensorFlow starts in a script that is a chief."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _run_as_main(script: Path) -> tuple[int, str]:
    """Run a script as the interpreter's main module; return its exit code and what failed, as `run` does.

    The module stays `__main__`: its variables live, and are destroyed, as those of `python SCRIPT`.
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
            return (code if -_C_LONG <= code < _C_LONG else -1) & 0xFF, ""  # as the kernel cuts it
        print(end.code, file=sys.stderr)
        return 1, ""
    except KeyboardInterrupt as error:
        _print_traceback(error, script)
        return 128 + signal.SIGINT, ""
    except TerminatedError:
        raise
    except BaseException as error:  # one that is no Exception, as asyncio's CancelledError, ends a script as others do
        _print_traceback(error, script)
        return 1, traceback.format_exception_only(error)[-1].strip()
    return 0, ""


def _print_traceback(error: BaseException, script: Path) -> None:
    """Show a script's exception as the interpreter does, from the script's own first line on.

    Raises:
        SystemExit: The script's own hook for exceptions exits, which an interpreter does then.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    shown = error.with_traceback(trace)
    try:
        sys.excepthook(type(error), shown, trace)
    except (SystemExit, TerminatedError):
        raise
    except BaseException as failed:
        if sys.stderr is not None:
            print("Error in sys.excepthook:", file=sys.stderr)
            traceback.print_exception(failed, chain=False)
            print("\nOriginal exception was:", file=sys.stderr)
            traceback.print_exception(shown)
