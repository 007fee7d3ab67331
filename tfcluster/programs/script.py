"""A user's own script, run as `python SCRIPT` would run it, beside the cluster and knowing of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context


def run(context: Context, *, args: list[str], path: str, cwd: str, seed: int | None) -> dict[str, Any]:
    """Run the script that was sent.

    Args:
        context: The run.
        args: The script's own arguments.
        path: Where the script is on the user's machine; where its folder is here too, it imports from there.
        cwd: The folder that the user was in; where there is none here, the script starts in the run's folder.
        seed: What the user gave as seed.

    Raises:
        ClusterError: The script ended with another exit code than 0, or with an exception.
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
    code = _run_as_main(context.sent)
    for thread in threading.enumerate():  # as the interpreter does at its end
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    if code:
        raise ClusterError(
            f"{context.sent.name} ended with exit code {code}", hint=f"What it printed: `tfcluster logs {context.run}`."
        )
    return {"exit_code": 0}


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


def _run_as_main(script: Path) -> int:
    """Run a script as the main program; its exit code, as the interpreter would end with it."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception as error:
        _print_traceback(error, script)
        raise ClusterError(f"{script.name} failed: {traceback.format_exception_only(error)[-1].strip()}") from None
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a full disk; one that the script has closed
                stream.flush()
    return 0


def _print_traceback(error: Exception, script: Path) -> None:
    """Print a script's traceback from the script's own first line on; what ran it is not the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))
