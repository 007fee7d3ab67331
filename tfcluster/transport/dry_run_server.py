"""Examining this host without changing anything on it: the host's side of the conversation with `probe`."""

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

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCK, check_runtime_folder, set_state_home, state_folder
from tfcluster.protocol.api import Method, Request
from tfcluster.protocol.codec import Decoder, encode
from tfcluster.transport.base import not_running
from tfcluster.transport.local import LocalAgentConnection, LocalTransport, connect
from tfcluster.transport.remote_bootstrap import CANNOT_KEEP, KEEP_HINT, roots, tell

# Of the spec's variables these say where the folders are that are looked into. No other variable is set, and these not
# before Python and the modules of its own installation have been imported.
_FOLDERS = ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")
# As `local` starts the agent: what is below does not import what is above, where all that it needs is on the host.
_EXAMINER = "tfcluster.agent.dry_preflight"
# An agent that has just been started, or is about to end, can be met in a moment.
_MEETING_SECONDS, _LOOK_SECONDS = 3.0, 0.05
_ANSWER_SECONDS = 50.0
_STATE_HINT = "Set XDG_STATE_HOME (for another host `state:` in the spec) to a folder that you can write to."


def serve(said: dict[str, Any]) -> None:
    """Answer questions, one a line, until the other side hangs up; then this process ends, and nothing is left of it.

    Args:
        said: The first line: `cluster`, `host` (what the cluster calls this machine), `state` (its folder for all
            clusters' state or None), `env` of the host in the spec, which is not applied, `stamp` (as `stamp_name`;
            None where there are no setup commands) and `ssh` (the destination as ssh takes it; None on the machine
            where the command runs). Questions are in `ask`:
            `survey`: -> what `survey` gives, `folders`: what keeps it from writing its files, `setup`: whether the
            setup commands have been run, `pythonpath`: whether there is a PYTHONPATH, which -I leaves out;
            `time`: -> {time};
            `prepare` {topology, listen}: -> as an agent says to Method.PREPARE, and {installation: problems, listens};
            `reach` {addresses, timeout}: as Method.REACH;
            `topology`: as Method.TOPOLOGY.
    """
    for name in _FOLDERS:
        if name in said["env"]:
            os.environ[name] = said["env"][name]
    if said["state"]:
        set_state_home(Path(said["state"]).expanduser().absolute())
    server = _Server(said)
    with contextlib.suppress(BrokenPipeError):
        tell({"reply": {}})  # the code has arrived
        while line := sys.stdin.readline():
            tell(server.answer(json.loads(line)))
    os._exit(0)  # whatever else, as a thread that looks up a name, would keep it


class _Server:
    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said
        self._here = LocalTransport(said["cluster"], said["host"])
        self._folder = state_folder(said["cluster"], said["host"])
        self._examiner: Any = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question: the reply or an error, as a message."""
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
        """What would keep the code from being written here."""
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
                told = _ask(agent, Method.PREPARE, topology=topology, dry=True)
                return {**told, "installation": [], "listens": False}
        told = self._examine().prepare(topology, listen)
        if why := _why_not_writable(self._folder):
            problem = ClusterError(f"{self._folder}: cannot make the state folder: {why}", hint=_STATE_HINT)
            told["problems"].append(problem.to_json())
        try:
            check_runtime_folder()
        except ClusterError as problem:
            told["problems"].append(problem.to_json())
        return {**told, "listens": listen}

    def _layout(self) -> dict[str, Any]:
        agent = self._agent()
        if agent is None:
            raise not_running(self._here.cluster)
        with contextlib.closing(agent):
            return _ask(agent, Method.TOPOLOGY, settled=True)

    def _reach(self, addresses: list[str], timeout: float) -> dict[str, Any]:
        return {"failures": self._examine().failures(addresses, timeout)}

    def _examine(self) -> Any:
        if self._examiner is None:
            module = importlib.import_module(_EXAMINER)
            environment = {**os.environ, **self._said["env"]}
            self._examiner = module.DryPreflight(self._said["host"], _existing(self._folder), environment)
        return self._examiner

    def _agent(self) -> LocalAgentConnection | None:
        """Connect to the agent of the cluster; None where there is none.

        Raises:
            ClusterError: The cluster is up, and its agent died: an examination does not start the next one.
        """
        deadline = time.monotonic() + _MEETING_SECONDS
        while True:
            if (self._folder / LOCK).exists():  # without it, to look for the socket would make the folder for sockets
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
            time.sleep(_LOOK_SECONDS)


def _ask(agent: LocalAgentConnection, call: Method, **arguments: Any) -> dict[str, Any]:
    """Ask an agent something by which it starts nothing.

    Raises:
        ClusterError: What it says, or that it went away.
    """
    agent.send(encode(Request(call, arguments).to_message()))
    decoder = Decoder()
    while data := agent.receive(_ANSWER_SECONDS):
        for message in decoder.feed(data):
            if "error" in message:
                raise ClusterError.from_json(message["error"])
            if "reply" in message:
                reply: dict[str, Any] = message["reply"]
                return reply
    raise ClusterError("the agent went away before it answered", hint="Try again.")


def _existing(path: Path) -> Path:
    """The path, or the innermost folder around it that exists."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))


def _why_not_writable(path: Path) -> str:
    """Why nothing could be written to a folder, which may have to be made; empty where something could."""
    there = _existing(path)
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"
