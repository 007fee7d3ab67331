"""The host's end of a session: survey the host, find or start the agent, and become the host's end of a link to it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.paths import (
    CODE_LINK,
    PACKAGE_ROOT,
    closest_existing,
    set_state_home,
    socket_path,
    state_folder,
    state_home,
    system_error,
)
from tfcluster.process_mark import mark_of
from tfcluster.tf_install import is_managed_by_system, missing_packages, tensorflow_version
from tfcluster.transport import job_step
from tfcluster.transport.errors import UnrecordedProcessesError
from tfcluster.transport.local import LocalAgentConnection, LocalTransport
from tfcluster.transport.remote.bootstrap import send_message

Handler = Callable[..., dict[str, Any]]


def serve(session: dict[str, Any]) -> None:
    """Handle the requests of a session until the command ends it.

    The first line has `cluster`; `host`, the name of this machine in the cluster; `state`, the host's folder for the
    state of all clusters, or None; `env`, the host's variables in the spec; and `job`, the job of Slurm whose step
    starts agents, or None. The requests are:

    `survey` -> as `survey` returns;
    `time` -> {time}, in Unix seconds;
    `open` {start, upgrade}, as for LocalTransport.open: find the agent, or start it, and stay connected to it until
    the session ends -> {socket, pid, notes}, or {unrecorded}, the message of an UnrecordedProcessesError;
    `link` -> {is_carried}; after this reply, the session carries any number of connections, see `relay.multiplexer`;
    `state` -> {up, exists}, as LocalTransport.is_up and LocalTransport.has_state return.
    """
    os.environ.update(session["env"])
    if session["state"]:
        set_state_home(Path(session["state"]).expanduser().absolute())
    if session["job"] is not None:
        try:
            job_step.join(session["job"], state_folder(session["cluster"], session["host"]))
        except ClusterError as error:
            send_message({"error": error.to_json()})
            return
    server = _Server(session)
    serve_requests(
        {
            "survey": survey,
            "time": lambda: {"time": time.time()},
            "open": server.open,
            "link": lambda: {"is_carried": True},
            "state": server.state,
        }
    )
    from tfcluster.transport.relay.multiplexer import serve_link  # imports asyncio

    serve_link(server.leave_agent)


def serve_requests(handlers: Mapping[str, Handler]) -> None:
    """Reply to requests, one a line of standard input, until the input ends or the session carries connections."""
    with contextlib.suppress(BrokenPipeError):
        send_message({"reply": {}})  # the code has been imported
        while line := sys.stdin.readline():
            request = json.loads(line)
            name = request.pop("request")
            message = _respond(handlers[name], request)
            send_message(message)
            if message.get("reply", {}).get("is_carried"):
                return
    os._exit(0)  # without waiting for threads, such as one that resolves a name


def _respond(handler: Handler, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"reply": handler(**arguments)}
    except ClusterError as error:
        return {"error": error.to_json()}
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            return {"error": system_error(error).to_json()}
        return {"error": ClusterError(f"{type(error).__name__}: {error}").to_json()}


class _Server:
    """The requests about the agent."""

    def __init__(self, session: Mapping[str, Any]) -> None:
        self._notes: list[str] = []
        self._transport = LocalTransport(session["cluster"], session["host"], self._notes.append)
        # Without this connection, an agent that was started for a command could exit before the command is connected.
        self._agent: LocalAgentConnection | None = None

    def open(self, start: bool, upgrade: bool) -> dict[str, Any]:
        try:
            self._agent = self._transport.open(start=start, upgrade=upgrade)
        except UnrecordedProcessesError as error:
            return {"unrecorded": error.message}
        # Keep the version of the code that a journal names, see `remote.install.prune`. The link leads to one beside
        # the journal, which the agent may not have written yet.
        state = state_folder(self._transport.cluster, self._transport.host)
        with contextlib.suppress(OSError):  # it is there already
            (PACKAGE_ROOT.parent / f".{mark_of(state)}").symlink_to(state / CODE_LINK)
        path = socket_path(self._transport.cluster, self._transport.host)
        return {"socket": str(path), "pid": self._agent.pid, "notes": self._notes}

    def leave_agent(self) -> None:
        """Disconnect from the agent: a command is connected now, or has been."""
        self._agent = None

    def state(self) -> dict[str, Any]:
        return {"up": self._transport.is_up(), "exists": self._transport.has_state()}


def survey() -> dict[str, Any]:
    """Survey this host for what an agent needs in order to start, without importing TensorFlow.

    The agent itself runs all further checks.

    Return `python`, `version`, `tensorflow` and `free_bytes`, as in `HostReport`; `missing`: the packages that are not
    installed, as `missing_packages` returns them; and `venv`: the folder for an environment to install them in, if pip
    installs nothing for this Python, else None.
    """
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "tensorflow": tensorflow_version(),
        "free_bytes": _free_bytes(),
        "missing": missing_packages(),
        "venv": os.path.expanduser("~/tf") if is_managed_by_system() else None,
    }


def _free_bytes() -> int:
    """Return the free disk space for the state of clusters in bytes; 0 if unknown."""
    try:
        statistics = os.statvfs(closest_existing(state_home()))
    except OSError:
        return 0
    return statistics.f_bavail * statistics.f_frsize
