"""The transport to an agent on another host, over any way to run commands there; see `connector`."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.codec import Greeting, encode_greeting
from tfcluster.transport.channel import Channel, RemoteAgent
from tfcluster.transport.connector import CommandConnector, Connector
from tfcluster.transport.errors import HostUnreachableError, UnrecordedProcessesError
from tfcluster.transport.local import LocalTransport, print_note
from tfcluster.transport.provision import bootstrap, bootstrap_command, code_bundle, host_command, run_setup, stamp_name
from tfcluster.transport.relay.host_link import HostLink
from tfcluster.transport.session import (
    InterpreterError,
    Probe,
    RemoteChannel,
    Session,
    note_missing_interpreter,
    open_session,
    split_problems,
)
from tfcluster.transport.shell import ENVIRONMENT, SHELL, typed, typed_in_environment
from tfcluster.transport.ssh import SshConnector

# Without a limit, a command on hundreds of hosts would keep this machine so busy that what it starts exceeds its time.
_starting = threading.BoundedSemaphore(settings.REMOTE_STARTS_AT_ONCE)


@dataclass(frozen=True)
class HostReport:
    """The result of probing a host.

    If the host cannot be reached (a HostUnreachableError) or has no suitable Python, nothing but that problem is known.
    """

    host: str
    problems: tuple[ClusterError, ...] = ()  # what keeps an agent from starting there, with hints that say what to type
    program: str = "ssh"  # the program on this machine that reaches it
    python: str = ""  # path; empty if it is not known
    python_version: str = ""  # such as `3.11.2`
    tensorflow: str | None = None  # version for that Python; None if there is none or the version cannot be determined
    free_bytes: int = 0  # disk space for the host's state
    clock_offset: float = 0.0  # seconds by which the host's clock is ahead of this machine's
    clock_error: float = 0.0  # maximum error of the offset in seconds, which is half the round-trip time
    shipped_bytes: int = 0  # size of the code bundle that had to be sent; 0 if the host had it
    unexamined: tuple[str, ...] = ()  # what a dry run, which changes nothing on the host, could not check, and why


class RemoteTransport:
    """The transport to the agent of a cluster on another host.

    Commands share a connection to the host: ssh's own, which forwards the agent's socket to this machine, or a session
    on the host that a relay keeps.
    """

    is_remote = True

    def __init__(self, cluster: str, host: Host) -> None:
        self.cluster = cluster
        self.host = host.name
        self._host = host
        self._connector: Connector = CommandConnector(host) if host.connect else SshConnector(cluster, host)
        self._master = self._connector if isinstance(self._connector, SshConnector) else None
        self._lock = threading.Lock()
        self._link = HostLink(cluster, host)
        self._idle_session: Session | None = None  # kept where each one is a connection

    def open(self, *, start: bool, upgrade: bool = False) -> Channel:
        """See `LocalTransport.open`.

        An earlier command has recorded the agent's socket, unless the agent has died since. Without a record, or if the
        agent is older, a session on the host finds the agent or starts one.
        """
        known = self._connect_to_known()
        if known is not None and not known[1].is_older:
            return known[0]
        session = self._start_session()
        try:
            reply = self._open_in(session, start=start, upgrade=upgrade)
            return self._share(session, RemoteAgent(reply["socket"], reply["pid"]))
        except BaseException as error:
            session.end()
            if isinstance(error, ClusterError) and error.exit_code is ExitCode.NOT_RUNNING:
                self.disconnect()
            raise

    def _open_in(self, session: Session, *, start: bool, upgrade: bool) -> dict[str, Any]:
        """Have a session find or start the agent, print the notes about it, and return the reply."""
        with _starting:
            reply = session.request("open", settings.REMOTE_OPEN_SECONDS, start=start, upgrade=upgrade)
        if "unrecorded" in reply:
            raise UnrecordedProcessesError(self.cluster, f"host {self.host!r}: {reply['unrecorded']}")
        for note in reply["notes"]:
            print_note(f"host {self.host!r}: {note}")
        return reply

    def _connect_to_known(self) -> tuple[Channel, Greeting] | None:
        """Connect to the agent over what commands share, without a session on the host.

        Return None if an earlier command has left nothing to share, or the agent does not listen.
        """
        if self._master is not None and (agent := self._master.read_agent()) is not None and agent.is_forwardable:
            return self._connect_by_ssh(self._master, agent)
        return self._connect_by_link()

    def _connect_by_ssh(self, ssh: SshConnector, agent: RemoteAgent) -> tuple[Channel, Greeting] | None:
        connection = ssh.connect(agent)
        if connection is None:
            return None
        try:
            return self._greet(RemoteChannel(connection, self.host, agent.pid, ssh.has_lost_host, ssh.typed))
        except HostUnreachableError:
            raise
        except ClusterError:  # no agent has sent that: something else listens in the place of a stale socket
            ssh.forget_agent()
            return None

    def _connect_by_link(self) -> tuple[Channel, Greeting] | None:
        connected = self._link.connect_to_agent()
        if connected is None:
            return None
        connection, agent = connected
        return self._greet(
            RemoteChannel(connection, self.host, agent.pid, self._link.has_lost_host, self._connector.typed)
        )

    def _greet(self, channel: RemoteChannel) -> tuple[Channel, Greeting] | None:
        """Exchange greetings with an agent; return None if it does not listen, or was replaced."""
        channel.send(encode_greeting())
        if not channel.wait_readable(settings.SSH_SILENCE_SECONDS) and self._find_agent() != channel.pid:
            return None  # its greeting may be on the way
        greeting = channel.read_greeting(settings.SSH_GREETING_SECONDS)
        return None if greeting is None else (channel, greeting)

    def _share(self, session: Session, agent: RemoteAgent) -> Channel:
        """Connect to the agent over what later commands share, and end the session here."""
        if self._master is not None:
            known = self._master.read_agent()
            is_forwardable = known is None or known.is_forwardable
            if is_forwardable and (connected := self._connect_by_ssh(self._master, agent)) is not None:
                session.end()
                return connected[0]
            self._master.write_agent(replace(agent, is_forwardable=False))
        self._link.keep(session, agent)
        connected = self._connect_by_link()
        if connected is None:  # a link that is about to end
            raise HostUnreachableError(self.host, "the connection broke", "Try again.")
        return connected[0]

    def _find_agent(self) -> int | None:
        """Have a session on the host look for an agent that does not answer, and start the next one if it has died.

        Return the pid of the agent; None if the cluster is not up.
        """
        session = self._start_session()
        try:
            return int(self._open_in(session, start=False, upgrade=False)["pid"])
        except ClusterError as error:
            if error.exit_code is not ExitCode.NOT_RUNNING:
                raise
            return None
        finally:
            session.end()

    def is_up(self) -> bool:
        """See `LocalTransport.is_up`."""
        greeting = self._read_greeting()
        return bool(self._state()["up"]) if greeting is None or greeting.is_up is None else greeting.is_up

    def has_state(self) -> bool:
        """See `LocalTransport.has_state`."""
        if self._read_greeting() is not None:
            return True
        exists = bool(self._state()["exists"])
        if not exists:
            self.disconnect()
        return exists

    def _read_greeting(self) -> Greeting | None:
        """Return the greeting of the agent if it can be had without a session."""
        connected = self._connect_to_known()
        return None if connected is None else connected[1]

    def _state(self) -> dict[str, Any]:
        session = self._start_session()
        try:
            return session.request("state", settings.REMOTE_REPLY_SECONDS)
        finally:
            self._keep_or_end(session)

    def command_line(self, argv: Sequence[str], *, is_terminal: bool) -> list[str]:
        """See `LocalTransport.command_line`."""
        return self._connector.argv(host_command(argv, self._host), is_terminal=is_terminal)

    def has_lost_host(self, code: int) -> bool:
        """See `LocalTransport.has_lost_host`."""
        return self._connector.has_failed(code, is_at_shell=True)

    def forward_port(self, local: int, remote: int) -> AbstractContextManager[None]:
        """See `LocalTransport.forward_port`."""
        if self._master is not None:
            return self._master.forward_port(local, remote)
        self._dial(remote).close()  # shows whether it can be done
        return forward_port(local, partial(self._dial, remote))

    def _dial(self, port: int) -> socket.socket:
        """Connect to a port of the host's loopback device through the link to the host."""
        connection = self._link.connect_to_port(port)
        if connection is None:
            session = self._start_session()
            try:
                self._link.keep(session, None)
            finally:
                session.end()
            connection = self._link.connect_to_port(port)
        if connection is None:  # a link that is about to end
            raise HostUnreachableError(self.host, "the connection broke", "Try again.")
        return connection

    def disconnect(self) -> None:
        """See `LocalTransport.disconnect`."""
        if self._master is not None:
            self._master.close()
        self._link.close()
        if self._idle_session is not None:
            self._idle_session.end()

    def examine(self) -> HostReport:
        """Run the setup commands, then in another session survey the host and start the agent; report the problems."""
        report, session = HostReport(self.host, program=self._connector.program), None
        problems: list[ClusterError] = []
        try:
            try:
                if self._host.setup:
                    run_setup(self._host, self._connector)
            except HostUnreachableError:
                raise
            except ClusterError as problem:
                problems.append(problem)
            session = self._start_session()
            report, _ = self._survey(session)
            problems += report.problems
            if not problems:
                reply = self._open_in(session, start=True, upgrade=True)
                if self._master is not None:
                    self._master.forward(RemoteAgent(reply["socket"], reply["pid"]))
        except ClusterError as problem:
            report = HostReport(self.host, program=self._connector.program)
            problems.append(problem)
        finally:
            if session is not None:
                self._keep_or_end(session)
        return replace(report, problems=tuple(problems))

    def probe(self) -> tuple[HostReport, Probe | None]:
        """Start a dry-run probe, which changes nothing on the host. Of the spec it runs only the Python that it names.

        The caller closes the probe. It is None if its process could not be started or packages that it needs are
        missing. Failures are reported as problems, not raised.
        """
        report = HostReport(self.host, program=self._connector.program)
        try:
            stamp = stamp_name(self._host) if self._host.setup else None
            session = self._start_session(is_dry_run=True, stamp=stamp)
        except ClusterError as problem:
            if isinstance(problem, InterpreterError) and self._host.setup:
                return replace(report, unexamined=(note_missing_interpreter(self._host, problem),)), None
            return replace(report, problems=(problem,)), None
        probe = Probe(session)
        try:
            report, has_packages = self._survey(session)
        except ClusterError as problem:
            report, has_packages = replace(report, problems=(problem,)), False
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
        problems = self._missing_packages(survey["python"], survey["venv"], survey["missing"])
        has_packages = not problems
        notes: list[str] = []
        if "setup" in survey:  # a dry run
            problems, notes = split_problems(self._host, problems, survey)
        report = HostReport(
            host=self.host,
            program=self._connector.program,
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

        A dry run leaves nothing behind on the host and on this machine, and isolates the Python from its environment;
        its `stamp` is the return value of `stamp_name`, or None if the host has no setup commands.
        """
        if not is_dry_run and (session := self._take_idle_session()) is not None:
            return session
        with _starting:
            return self._start_new_session(is_dry_run, stamp)

    def _start_new_session(self, is_dry_run: bool, stamp: str | None) -> Session:
        command = bootstrap_command(self._host.interpreter, shell=self._host.shell, isolated=is_dry_run)
        last_shell = SHELL if self._host.shell is None else ENVIRONMENT
        session = open_session(self._host, self._connector, command, last_shell=last_shell, is_shared=not is_dry_run)
        first_line = {
            **{"cluster": self.cluster, "host": self.host, "state": self._host.state, "env": dict(self._host.env)},
            **{"job": None if self._host.job is None else self._host.job.id},
            **{"is_dry_run": is_dry_run, "stamp": stamp},
            **bootstrap(is_dry_run=is_dry_run),
        }
        try:
            session.send(json.dumps(first_line).encode() + b"\n")
            message = session.receive(settings.SSH_FIRST_MESSAGE_SECONDS)
            if "old" in message:
                python = message["old"]
                raise InterpreterError(
                    f"host {self.host!r}: {python['python']} is Python {python['version']}, and tfcluster requires "
                    "3.11 or newer",
                    hint="Set `python:` in the spec to a newer one.",
                )
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

    def _missing_packages(self, python: str, venv: str | None, missing: Mapping[str, str]) -> list[ClusterError]:
        """Return an error for each package that a host's Python lacks; see `survey` for `venv` and `missing`."""
        install = typed([python, "-m", "pip", "install", *missing])
        if self._host.image is not None:
            lines = f"FROM {self._host.image}\nRUN {install}"
            return [ClusterError(message, hint=f"Build an image with it:\n{lines}") for message in missing.values()]
        if venv is not None:
            make, fill = [python, "-m", "venv", venv], [f"{venv}/bin/pip", "install", "tensorflow"]
            line = f"{typed(make)} && {typed(fill)}"
            hint = (
                f"Its system does not let pip install packages for {python}. Create an environment with "
                f"`{self._connector.typed(line)}`, and set `python: {venv}/bin/python` for this host in the spec."
            )
        elif self._host.shell is not None:
            install = typed_in_environment(install, self._host.shell)
            hint = f"Install with `{self._connector.typed(install)}`."
        else:
            hint = (
                f"Install with `{self._connector.typed(install)}`. If it is in an environment of conda or of modules, "
                "set `shell:` in the spec to the command that activates it."
            )
        return [ClusterError(message, hint=hint) for message in missing.values()]

    def _keep_or_end(self, session: Session) -> None:
        """Keep a session for the next request if each one costs a connection; otherwise end it."""
        with self._lock:
            if self._master is None and self._idle_session is None and session.is_idle():
                self._idle_session = session
                return
        session.end()

    def _take_idle_session(self) -> Session | None:
        with self._lock:
            session, self._idle_session = self._idle_session, None
        if session is not None:
            with contextlib.suppress(ClusterError):  # the link has been lost since
                if session.is_idle() and session.request("time", settings.PING_LOST_SECONDS):
                    return session
            session.end()
        return None


#: The transport to the agent of a cluster on one host.
HostTransport = LocalTransport | RemoteTransport


@contextlib.contextmanager
def forward_port(local: int, dial: Callable[[], socket.socket]) -> Iterator[None]:
    """Forward a port of the loopback device until the context is left; `dial` connects to the port of the host.

    If that raises a ClusterError, the browser sees that its connection is closed.
    """
    open_connections: set[socket.socket] = set()

    def carry(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ClusterError), dial() as other:
            open_connections.add(other)
            threading.Thread(target=_copy, args=[connection, other], daemon=True).start()
            _copy(other, connection)
            open_connections.discard(other)

    def accept() -> None:
        with contextlib.suppress(OSError):  # the listener has been closed
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=carry, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", local)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # without it, accept() would continue to wait
            for other in [*open_connections]:
                with contextlib.suppress(OSError):  # it has ended
                    other.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(settings.IO_BLOCK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
