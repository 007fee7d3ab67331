"""The transport to an agent on another host, over any way to run commands there; see `connector`."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
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
from tfcluster.protocol.serialization import to_json
from tfcluster.transport.channel import Channel, receive_line
from tfcluster.transport.connector import CommandConnector, Connector
from tfcluster.transport.errors import (
    HostUnreachableError,
    UnrecordedProcessesError,
    no_descriptors,
    no_response,
    with_host,
)
from tfcluster.transport.link.host_link import HostLink
from tfcluster.transport.local import LocalTransport, print_note
from tfcluster.transport.provision import (
    bootstrap,
    bootstrap_command,
    code_bundle,
    code_signature,
    has_run_setup,
    host_command,
    run_setup,
)
from tfcluster.transport.session import InterpreterError, RemoteChannel, Session, open_session
from tfcluster.transport.shell import ENVIRONMENT, SHELL, typed, typed_in_environment
from tfcluster.transport.ssh import SshConnector

# Without a limit, a command on hundreds of hosts would keep this machine so busy that what it starts exceeds its time.
_starting = threading.BoundedSemaphore(settings.REMOTE_STARTS_AT_ONCE)


@dataclass(frozen=True)
class HostReport:
    """The result of examining a host.

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
    has_packages: bool = False  # whether an agent can start there
    unexamined: tuple[str, ...] = ()  # what a dry run, which does not run the setup commands, could not check, and why


class RemoteTransport:
    """The transport to the agent of a cluster on another host.

    All that is asked of the host travels over its link, see `link`: each request over a connection of its own. What
    needs the connector alone are setup commands and the commands of `exec`.
    """

    is_remote = True

    def __init__(self, cluster: str, host: Host) -> None:
        self.cluster = cluster
        self.host = host.name
        self._host = host
        self._connector: Connector = CommandConnector(host) if host.connect else SshConnector(cluster, host)
        self._connecting = threading.Lock()
        self._link = HostLink(cluster, host, code_signature())
        self._shipped_bytes = 0  # by this command
        self._prepared: Channel | None = None  # the connection to the agent that `examine` has started

    def open(self, *, start: bool, upgrade: bool = False, dry: bool = False) -> Channel:
        """See `LocalTransport.open`."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            return prepared
        try:
            seconds = settings.REMOTE_OPEN_SECONDS
            reply, connection = self._request("agent", seconds, start=start, upgrade=upgrade, dry=dry)
            if "unrecorded" in reply:
                raise UnrecordedProcessesError(self.cluster, f"host {self.host!r}: {reply['unrecorded']}")
        except ClusterError as error:
            if error.exit_code is ExitCode.NOT_RUNNING:
                self.disconnect()
            raise
        for note in reply["notes"]:
            print_note(f"host {self.host!r}: {note}")
        return RemoteChannel(connection, self.host, reply["pid"], self._link.has_lost_host, self._connector.typed)

    def _ask(self, name: str, seconds: float) -> dict[str, Any]:
        """Send a request to the host, and return the reply."""
        reply, connection = self._request(name, seconds)
        connection.close()
        return reply

    def _request(self, name: str, seconds: float, **arguments: Any) -> tuple[dict[str, Any], socket.socket]:
        """Send a request to the host, see `remote.session.serve`; return the reply, and the connection.

        A link is made if there is none. If it is lost before the reply, the request is sent again, over another one.
        """
        for _ in range(3):
            try:
                asked = self._send({"request": name, **arguments}, seconds)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                raise no_descriptors(self.host, "this command", limit) from error
            if asked is None:
                continue
            message, connection = asked
            if "error" in message:
                connection.close()
                raise with_host(self.host, ClusterError.from_json(message["error"]))
            return message["reply"], connection
        raise HostUnreachableError(self.host, "the connection broke", "Try again.")

    def _send(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], socket.socket] | None:
        """Send a request over the link; return the host's message, and the connection.

        Return None if the link is lost before that; and if there was none, which has been made now.
        """
        with _starting if request.get("start") else contextlib.nullcontext():
            connection = self._link.connect(request)
            if connection is not None:
                with contextlib.ExitStack() as unless_answered:
                    unless_answered.enter_context(connection)
                    line = self._receive_line(connection, seconds)
                    if line:
                        unless_answered.pop_all()
                        return json.loads(line), connection
                return None
        self._make_link()
        return None

    def _receive_line(self, connection: socket.socket, seconds: float) -> bytes:
        try:
            return receive_line(connection, seconds)
        except TimeoutError:
            raise no_response(self.host, self._connector.typed("true"), seconds) from None

    def _make_link(self) -> None:
        """Start a session on the host, and leave it to the link process, unless another thread has just done so."""
        with self._connecting:
            if self._link.has_lost_host():
                with _starting:
                    session = self._start_session()
                self._shipped_bytes = session.shipped_bytes
                self._link.keep(session)

    def is_up(self) -> bool:
        """See `LocalTransport.is_up`."""
        return bool(self._ask("state", settings.REMOTE_REPLY_SECONDS)["up"])

    def has_state(self) -> bool:
        """See `LocalTransport.has_state`."""
        exists = bool(self._ask("state", settings.REMOTE_REPLY_SECONDS)["exists"])
        if not exists:
            self.disconnect()
        return exists

    def command_line(self, argv: Sequence[str], *, is_terminal: bool) -> list[str]:
        """See `LocalTransport.command_line`."""
        return self._connector.argv(host_command(argv, self._host), is_terminal=is_terminal)

    def has_lost_host(self, code: int) -> bool:
        """See `LocalTransport.has_lost_host`."""
        return self._connector.has_failed(code, is_at_shell=True)

    def forward_port(self, local: int, remote: int) -> AbstractContextManager[None]:
        """See `LocalTransport.forward_port`."""
        self._dial(remote).close()  # shows whether it can be done
        return forward_port(local, partial(self._dial, remote))

    def _dial(self, port: int) -> socket.socket:
        """Connect to a port of the host's loopback device."""
        return self._request("port", settings.REMOTE_REPLY_SECONDS, port=port)[1]

    def disconnect(self) -> None:
        """See `LocalTransport.disconnect`."""
        self._prepared = None
        self._link.close()
        self._connector.close()

    def examine(self, *, dry: bool = False) -> HostReport:
        """Run the setup commands, survey the host, and start the agent; report the problems.

        If `dry`, only survey the host.
        """
        if dry:
            return self._survey_dry()
        report = HostReport(self.host, program=self._connector.program)
        problems: list[ClusterError] = []
        try:
            try:
                if self._host.setup:
                    run_setup(self._host, self._connector)
            except HostUnreachableError:
                raise
            except ClusterError as problem:
                problems.append(problem)
            report = self._survey()
            problems += report.problems
            if not problems:
                self._prepared = self.open(start=True, upgrade=True)
        except ClusterError as problem:
            report = HostReport(self.host, program=self._connector.program)
            problems.append(problem)
        return replace(report, problems=tuple(problems))

    def _survey_dry(self) -> HostReport:
        """Survey the host; while the setup commands have not been run, note what they might change as unexamined."""
        report, lacks_setup = HostReport(self.host, program=self._connector.program), False
        try:
            lacks_setup = bool(self._host.setup) and not has_run_setup(self._host, self._connector)
            report = self._survey()
        except HostUnreachableError as problem:
            return replace(report, problems=(problem,))
        except ClusterError as problem:
            report = replace(report, problems=(problem,))
        if not lacks_setup:
            return report
        notes = [self._note(problem) for problem in report.problems]
        notes.append("`setup:` has not been run there: what it changes is not checked")
        return replace(report, problems=(), unexamined=tuple(notes))

    def _note(self, problem: ClusterError) -> str:
        """Return the note about a problem that the setup commands might solve."""
        if isinstance(problem, InterpreterError) and problem.is_missing:
            return f"python: {self._host.interpreter} does not exist yet; `setup:` might create it: not checked"
        message = problem.message.removeprefix(f"host {self.host!r}: ")
        return f"{message}; `setup:` might change that: not checked"

    def _survey(self) -> HostReport:
        """Survey the host, and compare its clock.

        A session that has begun earlier does not show what has changed since of the Python there and its environment,
        unless the cluster is up.
        """
        if not self._link.has_lost_host() and not self.is_up():
            self._link.close()
        survey = self._ask("survey", settings.REMOTE_SURVEY_SECONDS)
        before = time.time()
        remote = self._ask("time", settings.SSH_FIRST_MESSAGE_SECONDS)["time"]
        after = time.time()
        problems = self._missing_packages(survey["python"], survey["venv"], survey["missing"])
        if problems:  # the user will install them
            self._link.close()
        return HostReport(
            host=self.host,
            program=self._connector.program,
            problems=tuple(with_host(self.host, problem) for problem in problems),
            python=survey["python"],
            python_version=survey["version"],
            tensorflow=survey["tensorflow"],
            free_bytes=survey["free_bytes"],
            clock_offset=remote - (before + after) / 2,
            clock_error=(after - before) / 2,
            shipped_bytes=self._shipped_bytes,
            has_packages=not problems,
        )

    def _start_session(self) -> Session:
        """Start tfcluster's code under the Python that the spec names.

        The caller ends the session. An InterpreterError says that the host's Python does not run, or is too old.
        """
        command = bootstrap_command(self._host.interpreter, shell=self._host.shell)
        last_shell = SHELL if self._host.shell is None else ENVIRONMENT
        session = open_session(self._host, self._connector, command, last_shell=last_shell)
        first_line = {
            **{"cluster": self.cluster, "host": self.host, "state": self._host.state, "env": dict(self._host.env)},
            **{"provided": to_json(self._host.provided)},
            **bootstrap(),
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
