"""The transport to an agent on another host, over the user's own OpenSSH client."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport import code_bundle, openssh, unexamined
from tfcluster.transport.base import Channel, HostUnreachableError
from tfcluster.transport.dry_run_probe import Probe
from tfcluster.transport.openssh import InterpreterError, SshSession
from tfcluster.transport.provision import run_setup, stamp_name
from tfcluster.transport.socket_channel import SocketChannel


@dataclass(frozen=True)
class HostReport:
    """The result of probing a host.

    Attributes:
        host: The name of the host in the cluster.
        problems: The problems that keep an agent from starting there, each with a hint that says what to type. If the
            host cannot be reached (a HostUnreachableError) or has no suitable Python, nothing else is known.
        python: The path of the host's Python; empty if it is not known.
        python_version: The version of that Python, such as `3.11.2`.
        tensorflow: The version of the TensorFlow that is installed for that Python. None if there is none or the
            version cannot be determined.
        free_bytes: The free disk space for the host's state, in bytes.
        clock_offset: The seconds by which the host's clock is ahead of this machine's.
        clock_error: The maximum error of the offset in seconds, which is half the round-trip time.
        shipped_bytes: The size of the code bundle that had to be sent, in bytes; 0 if the host had it.
        unexamined: What a dry run, which changes nothing on the host, could not check, and why.
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
    """A connection to a cluster's agent on another host.

    Args:
        there: The transport to the host.
        session: The ssh session whose stdio proxy is connected to the agent.
        process: The `pid` and `start_time` of the agent's process.
    """

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
    """The transport to the agent of a cluster on another host.

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
            return SshAgentConnection(self, session, self._reply(session, settings.REMOTE_OPEN_SECONDS))
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
        """Wait until a process on the host has exited.

        Args:
            process: Its `pid` and `start_time`.
            timeout: The maximum time to wait in seconds.

        Returns:
            True if the process exited within that time.

        Raises:
            HostUnreachableError: The host cannot be reached.
        """
        return bool(self._ask("wait", patience=timeout, **process, timeout=timeout)["ended"])

    def disconnect(self) -> None:
        """See `HostTransport.disconnect`. This closes the ssh connection that all commands share."""
        openssh.disconnect(self.cluster, self._host)

    def examine(self) -> HostReport:
        """Provision and survey the host: run its setup commands once, send the code bundle, and probe it.

        Returns:
            The report. Failures are reported as problems, not raised.
        """
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
        """Start a dry-run probe, which changes nothing on the host. Of the spec it runs only the Python that it names.

        Returns:
            The report, and the probe process for further requests, which the caller closes. The process is None if it
            could not be started or the packages that it needs are missing. Failures are reported as problems, not
            raised.
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
            # Sends the code bundle, which all further requests need.
            self._reply(session, settings.REMOTE_REPLY_SECONDS)
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
        """Make the report of a survey, whether or not the session was a dry run.

        Args:
            found: The reply to the survey.
            shipped_bytes: The size of the code bundle that was sent, in bytes.
            offset: The seconds by which the host's clock is ahead.
            error: The maximum error of `offset` in seconds.
        """
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
            found = self._reply(session, settings.REMOTE_SURVEY_SECONDS)
            before = time.time()
            session.say(b"\n")
            theirs = self._reply(session, settings.SSH_FIRST_MESSAGE_SECONDS)["time"]
            after = time.time()
        finally:
            session.end()
        offset, error = theirs - (before + after) / 2, (after - before) / 2
        return self._surveyed(found, session.shipped_bytes, offset, error)

    def _ask(self, do: str, *, patience: float = 0.0, **what: Any) -> dict[str, Any]:
        """Make one request in a session of its own.

        Args:
            do: The request; see `stdio_proxy.serve`.
            patience: The seconds that the host may take for the request in addition to the usual timeout.
            **what: The arguments of the request.

        Returns:
            The reply.
        """
        session = self._begin(do, **what)
        try:
            return self._reply(session, settings.REMOTE_REPLY_SECONDS + patience)
        finally:
            session.end()

    def _begin(self, do: str, *, keep: bool = True, **what: Any) -> SshSession:
        """Begin a session in which the host's Python serves a request.

        Args:
            do: The request; see `stdio_proxy.serve` and `dry_run_server.serve`.
            keep: Cache the code on the host and share the ssh connection. If false, the session leaves nothing behind
                on either side, and the Python is isolated from its environment.
            **what: The arguments of the request.

        Returns:
            The session. The caller ends it.

        Raises:
            HostUnreachableError: The host cannot be reached.
            InterpreterError: The host's Python does not run, or is too old.
        """
        command = code_bundle.command(self._host.interpreter, isolated=not keep)
        session = SshSession(self.cluster, self._host, command, shared=keep)
        said = {
            **{"do": do, "keep": keep, **what, **code_bundle.first_words()},
            **{"cluster": self.cluster, "host": self.host, "state": self._host.state, "env": dict(self._host.env)},
        }
        try:
            session.say(json.dumps(said).encode() + b"\n")
            begun = session.hear(settings.SSH_FIRST_MESSAGE_SECONDS)
        except BaseException:
            session.end()
            raise
        if "old" in begun:
            session.end()
            raise _too_old(self.host, begun["old"])
        return session

    def _reply(self, session: SshSession, seconds: float) -> dict[str, Any]:
        """Read the host's reply, and send the code bundle first if the host requests it.

        Args:
            session: The session.
            seconds: The timeout in seconds.

        Raises:
            ClusterError: The host replied with an error, or did not reply.
        """
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
        """Prefix an error that the host reported with the host's name."""
        return ClusterError(f"host {self.host!r}: {problem.message}", hint=problem.hint, exit_code=problem.exit_code)


def _too_old(host: str, found: dict[str, str]) -> InterpreterError:
    return InterpreterError(
        f"host {host!r}: {found['python']} is Python {found['version']}, and tfcluster needs 3.10 or newer",
        hint="Name a newer one by `python:` in the spec.",
    )
