"""Reaching an agent on another host, through the user's own ssh."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport import code_bundle, openssh, unexamined
from tfcluster.transport.base import Channel, HostUnreachableError
from tfcluster.transport.dry_run_probe import Probe
from tfcluster.transport.openssh import FIRST_SECONDS, InterpreterError, SshSession
from tfcluster.transport.provision import run_setup, stamp_name
from tfcluster.transport.socket_channel import SocketChannel

# For an answer of a host that has begun to work on it. An agent may take a minute to start where the disk is slow, and
# wait for one that goes down before that; packages are looked up on a network's file system.
_ANSWER_SECONDS, _OPEN_SECONDS, _SURVEY_SECONDS = 30.0, 100.0, 60.0


@dataclass(frozen=True)
class HostReport:
    """What a first contact found on a host.

    Attributes:
        host: What the cluster calls it.
        problems: All that keeps an agent from starting there, each with what to type; nothing else is known where the
            host cannot be reached (a HostUnreachableError) or has no fitting Python.
        python: The path of its Python; empty where it is not known.
        python_version: As `3.11.2`.
        tensorflow: The version of the TensorFlow installed for it; None where there is none, or it cannot be told.
        free_bytes: The space that is left for its state.
        clock_offset: Seconds that its clock is ahead of this machine's.
        clock_error: Half the round trip: the offset is known within so many seconds.
        shipped_bytes: What had to be sent of tfcluster's own code.
        unexamined: What an examination that changes nothing could not look at, and why.
    """

    host: str
    problems: tuple[ClusterError, ...] = ()
    python: str = ""
    python_version: str = ""
    tensorflow: str | None = None
    free_bytes: int = 0
    clock_offset: float = 0.0
    clock_error: float = 0.0
    shipped_bytes: int = 0
    unexamined: tuple[str, ...] = ()


class SshAgentConnection(SocketChannel):
    """A connection to a cluster's agent on another host, for one request."""

    def __init__(self, there: SshTransport, session: SshSession, process: dict[str, Any]) -> None:
        super().__init__(session.connection)
        self._there = there
        self._session = session
        self._process = process

    def timeout_error(self, time: str) -> ClusterError:
        """See `SocketChannel.timeout_error`."""
        return HostUnreachableError(
            self._there.host,
            f"the agent there (pid {self._process['pid']}) has not answered within {time}",
            "Either the connection is lost, or the agent hangs: try again.",
        )

    def close(self) -> None:
        """See `Channel.close`."""
        self._session.end()

    def wait_for_end(self, timeout: float) -> bool:
        """See `Channel.wait_for_end`."""
        return self._there.ends(self._process, timeout)


class SshTransport:
    """The way to the agent of a cluster on another host.

    Args:
        cluster: The cluster's name.
        host: The host.
    """

    def __init__(self, cluster: str, host: Host) -> None:
        self.cluster = cluster
        self.host = host.name
        self._host = host

    def open(self, *, start: bool) -> Channel:
        """See `HostTransport.open`."""
        session = self._begin("open", start=start)
        try:
            return SshAgentConnection(self, session, self._reply(session, _OPEN_SECONDS))
        except BaseException as error:
            session.end()
            if isinstance(error, ClusterError) and error.exit_code is ExitCode.NOT_RUNNING:
                self.disconnect()
            raise

    def is_up(self) -> bool:
        """See `HostTransport.is_up`."""
        return bool(self._ask("look")["up"])

    def has_state(self) -> bool:
        """See `HostTransport.has_state`."""
        found = bool(self._ask("look")["state"])
        if not found:
            self.disconnect()
        return found

    def ends(self, process: dict[str, Any], timeout: float) -> bool:
        """Wait there until a process has ended; whether it did within `timeout` seconds."""
        return bool(self._ask("wait", patience=timeout, **process, timeout=timeout)["ended"])

    def disconnect(self) -> None:
        """See `HostTransport.disconnect`: the ssh connection that all commands share."""
        openssh.disconnect(self.cluster, self._host)

    def examine(self) -> HostReport:
        """Make the first contact: run the setup commands once, look at the host, send it what it needs; never fails."""
        problems: list[ClusterError] = []
        try:
            if self._host.setup:
                run_setup(self.cluster, self._host)
        except HostUnreachableError as problem:
            return HostReport(self.host, (problem,))
        except ClusterError as problem:
            problems.append(problem)
        try:
            found = self._survey()
        except ClusterError as problem:
            return HostReport(self.host, (*problems, problem))
        return replace(found, problems=(*problems, *found.problems))

    def probe(self) -> tuple[HostReport, Probe | None]:
        """Make a contact that changes nothing on the host, and of the spec runs only the Python there; never fails.

        Returns:
            What was found, and a process there to ask more of, to be closed; None where there is none, or it could not
            answer for want of a package.
        """
        try:
            stamp = stamp_name(self._host) if self._host.setup else None
            session = self._begin("probe", keep=False, ssh=self._host.destination, stamp=stamp)
        except InterpreterError as problem:
            if self._host.setup:
                return HostReport(self.host, unexamined=(unexamined.interpreter(self._host, problem),)), None
            return HostReport(self.host, (problem,)), None
        except ClusterError as problem:
            return HostReport(self.host, (problem,)), None
        probe = Probe(session, self._reply)
        try:
            self._reply(session, _ANSWER_SECONDS)  # with the code that it needs for all that follows
            found = probe.survey()
            offset, error = probe.clock()
        except ClusterError as problem:
            probe.close()
            return HostReport(self.host, (problem,)), None
        contact = self._surveyed(found, probe.shipped_bytes, offset, error)
        if found["problems"]:
            probe.close()
            return contact, None
        return contact, probe

    def _surveyed(self, found: dict[str, Any], shipped_bytes: int, offset: float, error: float) -> HostReport:
        """What a survey found, by a session that keeps the code there or by one that changes nothing."""
        problems = list(map(ClusterError.from_json, found["problems"]))
        notes: list[str] = []
        if "setup" in found:
            problems, notes = unexamined.split(self._host, problems, found)
        return HostReport(
            host=self.host,
            problems=tuple(map(self._of_host, problems)),
            python=found["python"],
            python_version=found["version"],
            tensorflow=found["tensorflow"],
            free_bytes=found["free_bytes"],
            clock_offset=offset,
            clock_error=error,
            shipped_bytes=shipped_bytes,
            unexamined=tuple(notes),
        )

    def _survey(self) -> HostReport:
        session = self._begin("examine", ssh=self._host.destination)
        try:
            found = self._reply(session, _SURVEY_SECONDS)
            before = time.time()
            session.say(b"\n")
            theirs = self._reply(session, FIRST_SECONDS)["time"]
            after = time.time()
        finally:
            session.end()
        offset, error = theirs - (before + after) / 2, (after - before) / 2
        return self._surveyed(found, session.shipped_bytes, offset, error)

    def _ask(self, do: str, *, patience: float = 0.0, **what: Any) -> dict[str, Any]:
        """A session for one question; returns the reply."""
        session = self._begin(do, **what)
        try:
            return self._reply(session, _ANSWER_SECONDS + patience)
        finally:
            session.end()

    def _begin(self, do: str, *, keep: bool = True, **what: Any) -> SshSession:
        """Begin a session in which the host's Python does something; see `relay.serve` and `probe_server.serve`.

        Args:
            do: What to do.
            keep: Keep the code there, and the connection here; else nothing is left of the session on either side, and
                the Python is isolated from its environment.
            **what: What that needs.
        """
        command = code_bundle.command(self._host.interpreter, isolated=not keep)
        session = SshSession(self.cluster, self._host, command, shared=keep)
        said = {
            **{"do": do, "keep": keep, **what, **code_bundle.first_words()},
            **{"cluster": self.cluster, "host": self.host, "state": self._host.state, "env": dict(self._host.env)},
        }
        try:
            session.say(json.dumps(said).encode() + b"\n")
            begun = session.hear(FIRST_SECONDS)
        except BaseException:
            session.end()
            raise
        if "old" in begun:
            session.end()
            raise _too_old(self.host, begun["old"])
        return session

    def _reply(self, session: SshSession, seconds: float) -> dict[str, Any]:
        """What the host replies, with the code that it needs for that."""
        said = session.hear(seconds)
        if "need" in said:
            session.shipped_bytes = len(code_bundle.archive())
            session.say(b"%d\n" % session.shipped_bytes + code_bundle.archive())
            said = session.hear(seconds)
        if "error" in said:
            raise self._of_host(ClusterError.from_json(said["error"]))
        reply: dict[str, Any] = said["reply"]
        return reply

    def _of_host(self, problem: ClusterError) -> ClusterError:
        """What a host says of itself, with its name."""
        return ClusterError(f"host {self.host!r}: {problem.message}", hint=problem.hint, exit_code=problem.exit_code)


def _too_old(host: str, found: dict[str, str]) -> InterpreterError:
    return InterpreterError(
        f"host {host!r}: {found['python']} is Python {found['version']}, and tfcluster needs 3.10 or newer",
        hint="Name a newer one by `python:` in the spec.",
    )
