"""Serve the dry-run probe of this host, which changes nothing on it: the server of `dry_run_probe`."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCK, set_state_home, state_folder
from tfcluster.protocol.api import Request, encode_request
from tfcluster.protocol.api.cluster import PrepareRequest, TopologyRequest
from tfcluster.protocol.frames import Frame, FrameDecoder, FrameKind, encode_frame, encode_greeting
from tfcluster.protocol.serialization import decode
from tfcluster.runtime_dir import check_runtime_dir
from tfcluster.transport.base import not_running
from tfcluster.transport.local import LocalAgentConnection, LocalTransport, connect
from tfcluster.transport.remote_bootstrap import CANNOT_KEEP, KEEP_HINT, roots, tell

# The variables of the spec that determine the folders that the probe inspects. No other variable is set, and these are
# not set until Python and the modules of its own installation have been imported.
_FOLDERS = ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")
# The module is imported by its name, as `local` does with the agent's: a lower layer must not import a higher one, but
# the code bundle on the host includes the module.
_EXAMINER = "tfcluster.agent.dry_preflight"
_STATE_HINT = "Set XDG_STATE_HOME (for another host `state:` in the spec) to a folder that you can write to."


def serve(said: dict[str, Any]) -> None:
    """Answer requests, one per line of standard input, until the client closes the session; then exit the process.

    The process leaves nothing behind on the host.

    Args:
        said: The first line: `cluster`; `host`, the name of this machine in the cluster; `state`, the host's folder
            for the state of all clusters, or None; `env`, the host's variables in the spec, which are not applied
            except for those that name folders; `stamp`, the return value of `stamp_name`, or None if there are no
            setup commands; and `ssh`, the destination for ssh, or None on the machine where the command runs.
            In the lines that follow, `ask` is the method and the other fields are its arguments:
            `survey` -> the fields of `host_probe.survey`; `folders`: the problems that keep the code from being
            written; `setup`: whether the setup commands have been run; `pythonpath`: whether PYTHONPATH, which -I
            ignores, is set;
            `time` -> {time};
            `prepare` {topology, listen} -> the fields of a PrepareReply; `installation`: the
            problems with the installed packages; `listens`: whether connections to the ports are accepted;
            `reach` {addresses, timeout} -> the fields of a ReachReply;
            `topology` -> the fields of a ClusterTopology.
    """
    for name in _FOLDERS:
        if name in said["env"]:
            os.environ[name] = said["env"][name]
    if said["state"]:
        set_state_home(Path(said["state"]).expanduser().absolute())
    server = _Server(said)
    with contextlib.suppress(BrokenPipeError):
        tell({"reply": {}})  # tells the client that the code has arrived
        while line := sys.stdin.readline():
            tell(server.answer(json.loads(line)))
    os._exit(0)  # do not wait for threads, such as one that resolves a name


class _Server:
    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said
        self._here = LocalTransport(said["cluster"], said["host"])
        self._folder = state_folder(said["cluster"], said["host"])
        self._examiner: Any = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Handle a request and return the reply or the error as a message."""
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "survey": self._survey,
            "time": self._time,
            "prepare": self._prepare,
            "reach": self._reach,
            "topology": self._layout,
        }
        try:
            return {"reply": answers[question.pop("ask")](**question)}
        except ClusterError as problem:
            return {"error": problem.to_json()}
        except Exception as problem:
            return {"error": ClusterError(f"{type(problem).__name__}: {problem}").to_json()}

    def _survey(self) -> dict[str, Any]:
        from tfcluster.transport.host_probe import survey

        folders = [problem.to_json() for problem in self._wrong_folders()]
        pythonpath = bool(os.environ.get("PYTHONPATH"))
        return {
            **survey(self._said["ssh"]),
            "folders": folders,
            "setup": self._is_set_up(),
            "pythonpath": pythonpath,
        }

    def _wrong_folders(self) -> Iterator[ClusterError]:
        """Yield the problem that would keep the code from being written to this host, if there is one."""
        reasons = [_why_not_writable(Path(root)) for root in roots(dict(self._said))]
        if all(reasons):
            yield ClusterError(f"{CANNOT_KEEP}: {reasons[0]}", hint=KEEP_HINT)

    def _is_set_up(self) -> bool:
        stamp = self._said["stamp"]
        if stamp is None:
            return True
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return os.path.exists(os.path.join(cache, "tfcluster", "setup", f"{stamp}-{os.uname().nodename}"))

    def _time(self) -> dict[str, Any]:
        return {"time": time.time()}

    def _prepare(self, topology: dict[str, Any], listen: bool) -> dict[str, Any]:
        agent = self._agent()
        if agent is not None:
            with contextlib.closing(agent):
                told = _ask(agent, PrepareRequest(decode(ClusterTopology, topology), dry=True))
                return {**told, "installation": [], "listens": False}
        told = self._examine().prepare(topology, listen)
        if why := _why_not_writable(self._folder):
            problem = ClusterError(f"{self._folder}: cannot make the state folder: {why}", hint=_STATE_HINT)
            told["problems"].append(problem.to_json())
        try:
            check_runtime_dir()
        except ClusterError as problem:
            told["problems"].append(problem.to_json())
        return {**told, "listens": listen}

    def _layout(self) -> dict[str, Any]:
        agent = self._agent()
        if agent is None:
            raise not_running(self._here.cluster)
        with contextlib.closing(agent):
            return _ask(agent, TopologyRequest(settled=True))

    def _reach(self, addresses: list[str], timeout: float) -> dict[str, Any]:
        return {"failures": self._examine().failures(addresses, timeout)}

    def _examine(self) -> Any:
        if self._examiner is None:
            module = importlib.import_module(_EXAMINER)
            environment = {**os.environ, **self._said["env"]}
            self._examiner = module.DryPreflight(self._said["host"], _existing(self._folder), environment)
        return self._examiner

    def _agent(self) -> LocalAgentConnection | None:
        """Connect to the agent of the cluster.

        Returns:
            The connection, or None if there is no agent.

        Raises:
            ClusterError: The cluster is up, but its agent has died. A dry run does not start a new agent.
        """
        deadline = time.monotonic() + settings.DRY_RUN_CONNECT_SECONDS
        while True:
            # Without this check, looking for the socket would create the folder for sockets.
            if (self._folder / LOCK).exists():
                agent = connect(self._here.cluster, self._here.host)
                if agent is not None:
                    return agent
            if not self._here.is_up():
                return None
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"cluster {self._here.cluster!r} is up, but its agent has died: not examined",
                    hint=f"`tfcluster status -c {self._here.cluster}` starts the next one; an examination does not.",
                    exit_code=ExitCode.UNHEALTHY,
                )
            time.sleep(settings.DRY_RUN_CONNECT_INTERVAL_SECONDS)


def _ask(agent: LocalAgentConnection, request: Request[Any, Any]) -> dict[str, Any]:
    """Send a request to an agent; this starts nothing.

    Args:
        agent: The connection to the agent.
        request: The request.

    Returns:
        The fields of the agent's reply.

    Raises:
        ClusterError: The agent replied with an error, or closed the connection before it replied.
    """
    agent.send(encode_greeting() + encode_frame(Frame(1, FrameKind.REQUEST, encode_request(request))))
    decoder = FrameDecoder(is_agent=False)
    while data := agent.receive(settings.DRY_RUN_REPLY_SECONDS):
        for frame in decoder.feed(data):
            if frame.kind is FrameKind.ERROR:
                raise ClusterError.from_json(frame.body["value"])
            if frame.kind is FrameKind.REPLY:
                reply: dict[str, Any] = frame.body["value"]
                return reply
    raise ClusterError("the agent went away before it answered", hint="Try again.")


def _existing(path: Path) -> Path:
    """Return the path if it exists, else its closest parent that exists."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))


def _why_not_writable(path: Path) -> str:
    """Check whether files could be written to a folder, which may have to be created first.

    Returns:
        The reason why not, or an empty string if they could.
    """
    there = _existing(path)
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"
