"""Serve the probe of a dry run on this host, for `session.Probe`, without changing anything on the host."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import site
import sys
import time
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import STATE_HINT, agent_pid, closest_existing, set_state_home, state_folder
from tfcluster.protocol.api import Request
from tfcluster.protocol.api.cluster import FailedCheck, Observation, ObserveRequest, PrepareRequest
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.runtime_dir import check_runtime_dir
from tfcluster.transport.local import AgentProcess, LocalAgentConnection, LocalTransport, connect
from tfcluster.transport.remote.bootstrap import CANNOT_STORE, STORE_HINT, cache_folders, send_message
from tfcluster.transport.remote.session import serve_requests, survey

# The variables of the spec that determine the folders that the probe inspects. No other variable is set, and these are
# not set until Python and the modules of its own installation have been imported.
_FOLDERS = ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")
# The module is imported by its name, as `local` does with the agent's: a lower layer must not import a higher one, but
# the code bundle on the host includes the module.
_PREFLIGHT_MODULE = "tfcluster.agent.preflight"


def main() -> None:
    """Serve the probe of the machine on which the command runs."""
    serve(json.loads(sys.stdin.readline()))


def serve(session: dict[str, Any]) -> None:
    """Answer requests, one per line of standard input, until the client closes the session; then exit the process.

    The process leaves nothing behind on the host. The first line has the fields that `remote.session.serve` describes,
    but of `env` only the variables that name folders are applied; `stamp` is the return value of `stamp_name`, or None
    if there are no setup commands. The requests are:

    `survey` -> the fields of `remote.session.survey`; `folders`: the problems that keep the code from being written;
    `setup`: whether the setup commands have been run; `pythonpath`: whether PYTHONPATH, which -I ignores, is set;
    `time` -> {time}, in Unix seconds;
    `prepare` {topology, listens} -> the fields of a Preparation;
    `reach` {asked}, a ReachRequest -> the fields of a ReachReply;
    `observe` -> the fields of an Observation.
    """
    for name in _FOLDERS:
        if name in session["env"]:
            os.environ[name] = session["env"][name]
    if session["state"]:
        set_state_home(Path(session["state"]).expanduser().absolute())
    # -I leaves out the folder of `pip install --user`, but it does not depend on the spec. A virtual environment
    # without access to the system's packages has no access to the user's either.
    if sys.flags.no_user_site and sys.base_prefix in site.PREFIXES:
        folder = site.getusersitepackages()
        if os.path.isdir(folder):
            site.addsitedir(folder)
    try:
        server = _Server(session)
    except ClusterError as error:  # the account has no home folder
        send_message({"error": error.to_json()})
        return
    serve_requests(
        {
            "survey": server.survey,
            "time": lambda: {"time": time.time()},
            "prepare": server.prepare,
            "reach": server.reach,
            "observe": server.observe,
        }
    )


class _Server:
    def __init__(self, session: dict[str, Any]) -> None:
        self._session = session
        self._transport = LocalTransport(session["cluster"], session["host"])
        self._folder = state_folder(session["cluster"], session["host"])
        self._preflight: Any = None  # an `agent.preflight.DryPreflight`, once it is needed

    def survey(self) -> dict[str, Any]:
        stamp, cache = self._session["stamp"], os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        path = os.path.join(cache, "tfcluster", "setup", f"{stamp}-{os.uname().nodename}")
        obstacles = [_why_not_writable(Path(root)) for root in cache_folders(self._session)]
        problem = ClusterError(f"{CANNOT_STORE}: {obstacles[0]}", hint=STORE_HINT)
        return {
            **survey(),
            "folders": [problem.to_json()] * all(obstacles),
            "setup": stamp is None or os.path.exists(path),
            "pythonpath": bool(os.environ.get("PYTHONPATH")),
        }

    def prepare(self, topology: dict[str, Any], listens: bool) -> dict[str, Any]:
        asked = self._ask_agent(PrepareRequest(decode(ClusterTopology, topology), listens=False))
        if asked is not None:
            return asked
        preparation: dict[str, Any] = self._dry_preflight().prepare(topology, listens)
        if why := _why_not_writable(self._folder):
            problem = ClusterError(f"{self._folder}: cannot make the state folder: {why}", hint=STATE_HINT)
            preparation["problems"].append(to_json(FailedCheck("folders", problem)))
        try:
            check_runtime_dir()
        except ClusterError as problem:
            preparation["problems"].append(to_json(FailedCheck("folders", problem)))
        return preparation

    def observe(self) -> dict[str, Any]:
        return self._ask_agent(ObserveRequest()) or to_json(Observation(None))

    def _ask_agent(self, request: Request[Any, Any]) -> dict[str, Any] | None:
        agent = self._agent()
        if agent is None:
            return None
        with contextlib.closing(agent):
            reply: dict[str, Any] = agent.call_once(request, settings.DRY_RUN_REPLY_SECONDS)
            return reply

    def reach(self, asked: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = self._dry_preflight().reach(asked)
        return reply

    def _dry_preflight(self) -> Any:
        if self._preflight is None:
            module = importlib.import_module(_PREFLIGHT_MODULE)
            environment = {**os.environ, **self._session["env"]}
            self._preflight = module.DryPreflight(self._session["host"], closest_existing(self._folder), environment)
        return self._preflight

    def _agent(self) -> LocalAgentConnection | None:
        """Connect to the agent of the cluster, if there is one.

        A dry run changes nothing, so it raises an error if the agent of a cluster that is up has died, and if processes
        run without a journal.
        """
        deadline = time.monotonic() + settings.DRY_RUN_CONNECT_SECONDS
        while True:
            agent = connect(self._transport.cluster, self._transport.host)
            if agent is not None:
                return agent
            if (problem := self._why_not_examined()) is None:
                return None
            if time.monotonic() > deadline:
                raise problem
            time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)

    def _why_not_examined(self) -> ClusterError | None:
        """Return why the host cannot be examined although no agent listens; None if nothing of the cluster runs."""
        cluster = self._transport.cluster
        if self._transport.is_up():
            agent = AgentProcess(cluster, self._transport.host, agent_pid(self._folder) or 0)
            if agent.is_agent():
                problem = agent.no_socket_error()
                return ClusterError(f"{problem.message}: not checked", hint=problem.hint, exit_code=ExitCode.UNHEALTHY)
            return ClusterError(
                f"cluster {cluster!r} is up, but its agent has died: not checked",
                hint=f"`tfcluster status -c {cluster}` starts the next one; a check does not.",
                exit_code=ExitCode.UNHEALTHY,
            )
        unrecorded = self._transport.find_unrecorded()
        return None if unrecorded is None else ClusterError(unrecorded.message, hint=unrecorded.hint)


def _why_not_writable(path: Path) -> str:
    """Return why files cannot be written to a folder, which may not exist yet; empty if they can."""
    existing = closest_existing(path)
    if not existing.is_dir():
        return f"{existing} is not a folder"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written to"
