"""Probe a host as part of a dry run, without changing anything there: the client of `remote.dry_run_server`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfcluster import boot, settings
from tfcluster.core.hosts import ENV_NOTE, THIS_MACHINE, Host
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import Observation, Preparation
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.transport.connector import CommandConnector
from tfcluster.transport.errors import clean_lines
from tfcluster.transport.session import InterpreterError, Session

# Prefixes of the environment variables that affect what Python or the dynamic linker loads.
_LOADER_PREFIXES = ("PYTHON", "LD_")


class Probe:
    """A probe process on a host: it examines the host and answers requests until the probe is closed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def prepare(self, topology: ClusterTopology, *, listens: bool) -> Preparation:
        """Run the preflight checks for the host's tasks of a topology and choose ports and GPUs without reserving them.

        The values of environment variables are masked before the topology is sent. With `listens`, the process accepts
        connections on the allocated ports until `close`, unless the cluster has an agent.
        """
        timeout = settings.DRY_RUN_PREPARE_SECONDS
        reply = self._session.request("prepare", timeout, topology=to_json(topology.masked()), listens=listens)
        return decode(Preparation, reply)

    def observe(self) -> Observation:
        """Return the state of the cluster on the host."""
        return decode(Observation, self._session.request("observe", settings.DRY_RUN_PREPARE_SECONDS))

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        """Return the addresses (`host:port`) that the host cannot connect to within the timeout, with the reason."""
        seconds = timeout + settings.DRY_RUN_MARGIN_SECONDS
        reply = self._session.request("reach", seconds, addresses=list(addresses), timeout=timeout)
        failures: dict[str, str] = reply["failures"]
        return failures

    def close(self) -> None:
        """Close the session, upon which the process exits and its ports become free."""
        self._session.finish()


class _LocalSession(Session):
    """A session with a process on this machine, which inherits the command's environment."""

    def __init__(self) -> None:
        connector = CommandConnector(replace(THIS_MACHINE, connect="env"))
        super().__init__(THIS_MACHINE, connector, boot.command("tfcluster.transport.remote.dry_run_server", "main"))

    def with_host(self, error: ClusterError) -> ClusterError:
        """See `Session.with_host`. On this machine, messages do not name it."""
        return error

    def exit_error(self, code: int | None, stderr: str) -> ClusterError:
        """See `Session.exit_error`."""
        last = "".join(f": {line}" for line in clean_lines(stderr)[-1:])
        return ClusterError(f"the process that checks this machine ended with exit code {code}{last}")


def start_local_probe(cluster: str, host: str) -> Probe:
    """Start a probe of this machine, named `host` in the cluster, which the caller closes."""
    session = _LocalSession()
    first_line: dict[str, Any] = {"cluster": cluster, "host": host, "state": None, "env": {}, "stamp": None}
    session.send(json.dumps(first_line).encode() + b"\n")
    try:
        session.extract_reply(session.receive(settings.SSH_FIRST_MESSAGE_SECONDS))
    except BaseException:
        session.end()
        raise
    return Probe(session)


def note_missing_interpreter(host: Host, problem: InterpreterError) -> str:
    """Return the note that the Python of a host with setup commands does not run, as these commands may install it."""
    if problem.is_missing:
        return f"python: {host.interpreter} does not exist yet; `setup:` might create it: not checked"
    what = problem.message.removeprefix(f"host {host.name!r}: ")
    return f"python: {what}; `setup:` might change that: not checked"


def split_problems(
    host: Host, missing: Sequence[ClusterError], survey: Mapping[str, Any]
) -> tuple[list[ClusterError], list[str]]:
    """Separate the problems of a host from notes about what a dry run cannot determine without changing the host.

    `missing` has an error for each package that the host's Python lacks. For `survey`, see
    `remote.dry_run_server.serve`.
    """
    problems = [*missing, *map(ClusterError.from_json, survey["folders"])]
    names = [name for name in host.env if name.startswith(_LOADER_PREFIXES)]
    notes = [f"{ENV_NOTE}{', '.join(names)}: not set for this, so what that changes is not checked"] * bool(names)
    if not survey["setup"]:
        notes += [f"{problem.message}; `setup:` might change that: not checked" for problem in problems]
        return [], [*notes, "`setup:` has not been run there: what it changes is not checked"]
    if missing and survey["pythonpath"]:
        reason = "there is a PYTHONPATH there, which the check leaves out: not checked"
        notes += [f"{problem.message}; {reason}" for problem in missing]
        return problems[len(missing) :], notes
    return problems, notes
