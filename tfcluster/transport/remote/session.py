"""The host's end of a link: it answers what commands ask of this host, such as a connection to the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.hosts import Provided
from tfcluster.errors import ClusterError
from tfcluster.paths import (
    closest_existing,
    set_state_home,
    state_folder,
    state_home,
    system_error,
)
from tfcluster.protocol.codec import encode
from tfcluster.protocol.serialization import decode
from tfcluster.providers import load_host_side
from tfcluster.tf_install import is_managed_by_system, missing_packages, tensorflow_version
from tfcluster.transport.errors import UnrecordedProcessesError
from tfcluster.transport.link.multiplexer import Answer, HostRequest, serve_link
from tfcluster.transport.local import LocalTransport, start_agents_by
from tfcluster.transport.remote.bootstrap import send_message
from tfcluster.transport.resume import keep_code

#: A reply, and the connection that it precedes, if any.
Reply = tuple[dict[str, Any], socket.socket | None]


def serve(session: dict[str, Any]) -> None:
    """Carry the connections of commands to this host until the link ends.

    The session's first line has `cluster`; `host`, the name of this machine in the cluster; `state`, the host's folder
    for the state of all clusters, or None; `env`, the host's variables in the spec; and `provided`, what provides the
    host, or None. A connection begins with a request, and what it gets first is a line with a reply or an
    error. The requests are:

    `survey` -> as `survey` returns;
    `time` -> {time}, in Unix seconds;
    `state` -> {up, exists}, as LocalTransport.is_up and LocalTransport.has_state return;
    `agent` {start, upgrade, dry}, as for LocalTransport.open -> {pid, notes}, and then the connection to the agent; or
    {unrecorded}, the message of an UnrecordedProcessesError;
    `port` {port} -> {}, and then a connection to the port of the loopback device.
    """
    os.environ.update(session["env"])
    if session["state"]:
        set_state_home(Path(session["state"]).expanduser().absolute())
    if session["provided"] is not None:
        try:
            side = load_host_side(decode(Provided, session["provided"]))
            start_agents_by(side.join(state_folder(session["cluster"], session["host"])))
        except ClusterError as error:
            send_message({"error": error.to_json()})
            return
    with contextlib.suppress(BrokenPipeError):
        send_message({"reply": {}})  # the code has been imported
    serve_link(_RequestHandler(session["cluster"], session["host"]).answer)


class _RequestHandler:
    """Answers requests, each in a thread of its own: an agent may take its time to start."""

    def __init__(self, cluster: str, host: str) -> None:
        self._cluster = cluster
        self._host = host
        self._threads = ThreadPoolExecutor(settings.HOST_LINK_REQUESTS_AT_ONCE)
        self._handlers: Mapping[str, Callable[..., Reply]] = {
            "survey": lambda: (survey(), None),
            "time": lambda: ({"time": time.time()}, None),
            "state": self._state,
            "agent": self._agent,
            "port": self._port,
        }

    async def answer(self, request: HostRequest) -> Answer:
        arguments = {**request}
        try:
            respond = partial(self._handlers[arguments.pop("request")], **arguments)
            reply, connection = await asyncio.get_running_loop().run_in_executor(self._threads, respond)
            streams = None if connection is None else await asyncio.open_connection(sock=connection)
        except Exception as error:
            return encode({"error": as_cluster_error(error).to_json()}), None
        return encode({"reply": reply}), streams

    def _state(self) -> Reply:
        transport = LocalTransport(self._cluster, self._host)
        return {"up": transport.is_up(), "exists": transport.has_state()}, None

    def _agent(self, start: bool, upgrade: bool, dry: bool) -> Reply:
        notes: list[str] = []
        transport = LocalTransport(self._cluster, self._host, notes.append)
        try:
            agent = transport.open(start=start, upgrade=upgrade, dry=dry)
        except UnrecordedProcessesError as error:
            return {"unrecorded": error.message}, None
        keep_code(self._cluster, self._host)
        return {"pid": agent.pid, "notes": notes}, agent.take_socket()

    def _port(self, port: int) -> Reply:
        return {}, socket.create_connection(("127.0.0.1", port))


def as_cluster_error(error: Exception) -> ClusterError:
    """Return the error of this host that a command shows."""
    if isinstance(error, ClusterError):
        return error
    if isinstance(error, OSError) and error.errno:
        return system_error(error)
    return ClusterError(f"{type(error).__name__}: {error}")


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
