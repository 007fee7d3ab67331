"""The transport to an agent on another host, over the user's own OpenSSH client."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.codec import Greeting, encode_greeting
from tfcluster.transport.agent_process import print_note
from tfcluster.transport.channel import Channel, HostUnreachableError, UnrecordedProcessesError
from tfcluster.transport.dry_run_probe import Probe, note_missing_interpreter, split_problems
from tfcluster.transport.provision import bootstrap, bootstrap_command, code_bundle, host_command, run_setup, stamp_name
from tfcluster.transport.ssh_master import RemoteAgent, SshMaster, ssh_command
from tfcluster.transport.ssh_session import InterpreterError, Session, SshChannel


@dataclass(frozen=True)
class HostReport:
    """The result of probing a host; only the problem if it cannot be reached or has no suitable Python."""

    host: str
    problems: tuple[ClusterError, ...] = ()  # what keeps an agent from starting there, with hints that say what to type
    python: str = ""  # path; empty if it is not known
    python_version: str = ""  # such as `3.11.2`
    tensorflow: str | None = None  # version for that Python; None if there is none or the version cannot be determined
    free_bytes: int = 0  # disk space for the host's state
    clock_offset: float = 0.0  # seconds by which the host's clock is ahead of this machine's
    clock_error: float = 0.0  # maximum error of the offset in seconds, which is half the round-trip time
    shipped_bytes: int = 0  # size of the code bundle that had to be sent; 0 if the host had it
    unexamined: tuple[str, ...] = ()  # what a dry run could not check without changing the host, and why


class SshTransport:
    """The transport to the agent of a cluster on another host."""

    def __init__(self, cluster: str, host: Host) -> None:
        self.cluster = cluster
        self.host = host.name
        self.is_remote = True
        self._host = host
        self._master = SshMaster(cluster, host)

    def open(self, *, start: bool, upgrade: bool = False) -> Channel:
        """See `HostTransport.open`.

        An earlier command has recorded the agent's socket, unless the agent has died since. Without a record, or if the
        agent is older, a session on the host finds the agent or starts one.
        """
        known = self._master.read_agent()
        connected = self._connect(known) if known else None
        if connected is not None and not connected[1].is_older:
            return connected[0]
        session = self._start_session()
        try:
            reply = self._open_in(session, start=start, upgrade=upgrade)
            agent = RemoteAgent(reply["socket"], reply["pid"], known is None or known.is_forwardable)
            connected = None if reply["is_viewer"] else self._connect(agent)
            if connected is None:
                return self._proxy(session, agent, is_viewer=reply["is_viewer"])
        except BaseException as error:
            session.end()
            if isinstance(error, ClusterError) and error.exit_code is ExitCode.NOT_RUNNING:
                self.disconnect()
            raise
        session.end()
        return connected[0]

    def _open_in(self, session: Session, *, start: bool, upgrade: bool) -> dict[str, Any]:
        """Have a session find or start the agent, print the notes about it, and return the reply."""
        reply = session.request("open", settings.REMOTE_OPEN_SECONDS, start=start, upgrade=upgrade)
        if "unrecorded" in reply:
            raise UnrecordedProcessesError(self.cluster, f"host {self.host!r}: {reply['unrecorded']}")
        for note in reply["notes"]:
            print_note(f"host {self.host!r}: {note}")
        return reply

    def _connect(self, agent: RemoteAgent) -> tuple[Channel, Greeting] | None:
        """Connect to an agent's forwarded socket, and read its greeting.

        Return None if not the agent listens there, or the host's ssh server does not forward sockets.
        """
        connection = self._master.connect(agent)
        if connection is None:
            return None
        channel = SshChannel(connection, self.host, agent.pid, self._master)
        channel.send(encode_greeting())
        if not channel.wait_readable(settings.SSH_SILENCE_SECONDS):
            self._find_agent()
        try:
            greeting = channel.read_greeting(settings.SSH_GREETING_SECONDS)
        except HostUnreachableError:
            raise
        except ClusterError:  # no agent has sent that: something else listens in the place of a stale socket
            self._master.forget_agent()
            return None
        return None if greeting is None else (channel, greeting)

    def _find_agent(self) -> None:
        """Have a session on the host find an agent that does not answer: it continues a stopped one."""
        session = self._start_session()
        try:
            self._open_in(session, start=False, upgrade=False)
        except ClusterError as error:
            if error.exit_code is not ExitCode.NOT_RUNNING:
                raise
        finally:
            session.end()

    def _proxy(self, session: Session, agent: RemoteAgent, *, is_viewer: bool) -> Channel:
        """Have a session carry the bytes of the connection, as ssh forwards no viewer, and not every agent's socket."""
        if not session.request("proxy", settings.REMOTE_REPLY_SECONDS)["connected"]:
            raise HostUnreachableError(self.host, "its agent disconnected before it replied", "Try again.")
        channel = SshChannel(session.connection, self.host, agent.pid, self._master, session)
        channel.is_viewer = is_viewer
        channel.send(encode_greeting())
        if not is_viewer:
            self._master.write_agent(replace(agent, is_forwardable=False))
        return channel

    def is_up(self) -> bool:
        """See `HostTransport.is_up`."""
        greeting = self._read_greeting()
        return bool(self._state()["up"]) if greeting is None or greeting.is_up is None else greeting.is_up

    def has_state(self) -> bool:
        """See `HostTransport.has_state`."""
        if self._read_greeting() is not None:
            return True
        exists = bool(self._state()["exists"])
        if not exists:
            self.disconnect()
        return exists

    def _read_greeting(self) -> Greeting | None:
        """Return the greeting of the agent if a session is not necessary for it."""
        known = self._master.read_agent()
        connected = self._connect(known) if known else None
        return None if connected is None else connected[1]

    def _state(self) -> dict[str, Any]:
        session = self._start_session()
        try:
            return session.request("state", settings.REMOTE_REPLY_SECONDS)
        finally:
            session.end()

    def command_line(self, argv: Sequence[str], *, is_terminal: bool) -> list[str]:
        """See `HostTransport.command_line`."""
        command = host_command(argv, self._host)
        return ssh_command(self._host, command, control_path=self._master.control_path, is_terminal=is_terminal)

    def forward_port(self, local: int, remote: int) -> AbstractContextManager[None]:
        """See `HostTransport.forward_port`."""
        return self._master.forward_port(local, remote)

    def disconnect(self) -> None:
        """See `HostTransport.disconnect`. This closes the ssh connection that all commands share."""
        self._master.close()

    def examine(self) -> HostReport:
        """Run the setup commands, then in another session survey the host and start the agent; report the problems."""
        problems: list[ClusterError] = []
        try:
            if self._host.setup:
                run_setup(self._host, self._master.control_path)
        except HostUnreachableError as problem:
            return HostReport(self.host, (problem,))
        except ClusterError as problem:
            problems.append(problem)
        try:
            session = self._start_session()
        except ClusterError as problem:
            return HostReport(self.host, (*problems, problem))
        try:
            report, _ = self._survey(session)
            report = replace(report, problems=(*problems, *report.problems))
            if not report.problems:
                reply = self._open_in(session, start=True, upgrade=True)
                self._master.forward(RemoteAgent(reply["socket"], reply["pid"]))
            return report
        except ClusterError as problem:
            return HostReport(self.host, (*problems, problem))
        finally:
            session.end()

    def probe(self) -> tuple[HostReport, Probe | None]:
        """Start a dry-run probe, which changes nothing on the host. Of the spec it runs only the Python that it names.

        The caller closes the probe. It is None if its process could not be started or packages that it requires are
        missing. Failures are reported as problems, not raised.
        """
        try:
            stamp = stamp_name(self._host) if self._host.setup else None
            session = self._start_session(is_dry_run=True, stamp=stamp)
        except InterpreterError as problem:
            if self._host.setup:
                return HostReport(self.host, unexamined=(note_missing_interpreter(self._host, problem),)), None
            return HostReport(self.host, (problem,)), None
        except ClusterError as problem:
            return HostReport(self.host, (problem,)), None
        probe = Probe(session)
        try:
            report, has_packages = self._survey(session)
        except ClusterError as problem:
            probe.close()
            return HostReport(self.host, (problem,)), None
        if not has_packages:
            probe.close()
            return report, None
        return report, probe

    def _survey(self, session: Session) -> tuple[HostReport, bool]:
        """Survey the host, and compare its clock; return the report, and whether it has the packages for an agent."""
        survey = session.request("survey", settings.REMOTE_SURVEY_SECONDS)
        before = time.time()
        remote = session.request("time", settings.SSH_FIRST_MESSAGE_SECONDS)["time"]
        after = time.time()
        problems = list(map(ClusterError.from_json, survey["problems"]))
        has_packages = not problems
        notes: list[str] = []
        if "setup" in survey:  # a dry run
            problems, notes = split_problems(self._host, problems, survey)
        report = HostReport(
            host=self.host,
            problems=tuple(map(session.with_host, problems)),
            python=survey["python"],
            python_version=survey["version"],
            tensorflow=survey["tensorflow"],
            free_bytes=survey["free_bytes"],
            clock_offset=remote - (before + after) / 2,
            clock_error=(after - before) / 2,
            shipped_bytes=session.shipped_bytes,
            unexamined=tuple(notes),
        )
        return report, has_packages

    def _start_session(self, *, is_dry_run: bool = False, stamp: str | None = None) -> Session:
        """Start tfcluster's code under the Python that the spec names, as `remote.session` or `remote.dry_run_server`.

        The caller ends the session. An InterpreterError says that the host's Python does not run, or is too old.

        Args:
            is_dry_run: Leave nothing behind on the host and on this machine, and isolate the Python from its
                environment. If false, the code is cached on the host and the ssh connection is shared.
            stamp: For a dry run: the return value of `stamp_name`, or None if the host has no setup commands.
        """
        command = bootstrap_command(self._host.interpreter, shell=self._host.shell, isolated=is_dry_run)
        control_path = None if is_dry_run else self._master.control_path
        session = Session(self._host, ssh_command(self._host, command, control_path=control_path))
        first_line = {
            **{"cluster": self.cluster, "host": self.host, "state": self._host.state, "env": dict(self._host.env)},
            **{"ssh": self._host.destination, "shell": self._host.shell, "is_dry_run": is_dry_run, "stamp": stamp},
            **bootstrap(is_dry_run=is_dry_run),
        }
        try:
            session.send(json.dumps(first_line).encode() + b"\n")
            message = session.receive(settings.SSH_FIRST_MESSAGE_SECONDS)
            if "old" in message:
                raise _too_old(self.host, message["old"])
            message = session.receive(settings.REMOTE_REPLY_SECONDS)
            if "need" in message:
                session.shipped_bytes = len(code_bundle())
                session.send(b"%d\n" % session.shipped_bytes + code_bundle())
                message = session.receive(settings.REMOTE_REPLY_SECONDS)
            session.extract_reply(message)
        except BaseException:
            session.end()
            raise
        return session


def _too_old(host: str, python: dict[str, str]) -> InterpreterError:
    return InterpreterError(
        f"host {host!r}: {python['python']} is Python {python['version']}, and tfcluster needs 3.10 or newer",
        hint="Name a newer one by `python:` in the spec.",
    )
