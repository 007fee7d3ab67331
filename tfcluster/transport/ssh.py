"""The user's own OpenSSH client as the way to a host, with a connection that commands share.

OpenSSH calls the process that owns the connection a ControlMaster. It runs in the background, opens sessions and
forwards sockets without another authentication, and exits some minutes after the last command.

The forwarded socket makes an agent on another host reachable as one on this machine is: by connect(). A record beside
it names its target, so that a later command can have it forwarded again without a session on the host.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.os.files import locked_folder, write_atomically
from tfcluster.runtime_dir import forwarded_socket_path, ssh_control_path
from tfcluster.transport import ssh_config
from tfcluster.transport.channel import RemoteAgent, connect_unix
from tfcluster.transport.errors import HostUnreachableError, no_response, retry_while_busy
from tfcluster.transport.shell import LOGIN, REACHED, SHELL, say, typed

#: The exit code of ssh if ssh itself failed, not the command that it ran.
SSH_FAILED = 255
#: The options that decide whether ssh runs a command with its standard streams, and the first version that has them.
_COMMAND_OPTIONS = {"SessionType": "default", "StdinNull": "no", "ForkAfterAuthentication": "no"}
_COMMAND_OPTIONS_VERSION = (8, 7)


def ssh_not_runnable(error: OSError) -> ClusterError:
    """Return the error that ssh cannot be run on this machine."""
    return ClusterError(f"cannot run ssh: {error.strerror}", hint="Install OpenSSH's client.")


# The paths of sockets that ssh forwards: it expands % and $.
_FORWARDABLE = re.compile(r"[^%$\0\n]+")


def ssh_command(
    host: Host, *arguments: str, control_path: Path | None, is_terminal: bool = False, says_login: bool = False
) -> list[str]:
    """Return the argv of an ssh to a host, with a login shell if there are no arguments.

    `control_path` is the control socket of the shared connection, which is created if it does not exist; None for a
    connection that ends with this ssh and leaves nothing behind on this machine. With `says_login`, ssh sends a message
    when it has logged in, unless it uses a shared connection that exists.
    """
    sharing: dict[str, object] = {"ControlMaster": "no", "ControlPersist": "no", "ControlPath": "none"}
    if control_path is not None:
        sharing = {
            "ControlMaster": "auto",
            "ControlPersist": settings.SSH_PERSIST_SECONDS,
            "ControlPath": control_path,
            "StreamLocalBindUnlink": "yes",  # a forwarded socket replaces the file that an earlier ssh left
        }
    options = {
        "BatchMode": "yes",  # ssh must not ask for a password: there is no terminal
        "LogLevel": "ERROR",  # suppresses the banner, but not the errors
        "RemoteCommand": "none",
        **(_COMMAND_OPTIONS if ssh_config.version() >= _COMMAND_OPTIONS_VERSION else {}),
        **({"PermitLocalCommand": "yes", "LocalCommand": say({REACHED: LOGIN})} if says_login else {}),
        "ClearAllForwardings": "yes",
        "ConnectTimeout": settings.SSH_CONNECT_SECONDS,
        "ServerAliveInterval": settings.SSH_KEEPALIVE_SECONDS,
        "ServerAliveCountMax": settings.SSH_KEEPALIVE_PROBES,
        **sharing,
    }
    flags = (word for name, value in options.items() for word in ("-o", f"{name}={value}"))
    return ["ssh", "-t" if is_terminal else "-T", *flags, "--", host.destination, *arguments]


class SshConnector:
    """The ssh to a host, with a connection to it that all commands on this machine share."""

    program = "ssh"
    first_input = b""
    leads_group = False  # the shared connection of ssh may need a proxy

    def __init__(self, cluster: str, host: Host) -> None:
        self._cluster = cluster
        self._host = host

    @property
    def control_path(self) -> Path:
        """Return the path of the control socket."""
        return ssh_control_path(self._cluster, self._host.destination)

    @property
    def _socket_path(self) -> Path:
        return forwarded_socket_path(self._cluster, self._host.name, self._host.destination)

    def argv(self, command: str, *, is_terminal: bool = False) -> list[str]:
        """See `CommandConnector.argv`."""
        return ssh_command(self._host, command, control_path=self.control_path, is_terminal=is_terminal)

    def session_argv(self, command: str, *, is_shared: bool = True) -> list[str]:
        """See `CommandConnector.session_argv`."""
        control_path = self.control_path if is_shared else None
        line = f"{say({REACHED: SHELL})}; exec {command}"
        return ssh_command(self._host, line, control_path=control_path, says_login=True)

    def login(self) -> AbstractContextManager[None]:
        """See `CommandConnector.login`."""
        return ssh_config.login_slot(self._host.destination)

    def typed(self, command: str) -> str:
        """See `CommandConnector.typed`."""
        return typed(["ssh", self._host.destination, command])

    def has_failed(self, code: int | None, *, is_at_shell: bool) -> bool:
        """See `CommandConnector.has_failed`."""
        return code in (None, SSH_FAILED)

    def failure(self, code: int | None, stderr: str, *, has_answered: bool) -> HostUnreachableError:
        """See `CommandConnector.failure`."""
        from tfcluster.transport.ssh_errors import classify_ssh_error  # rarely needed

        return classify_ssh_error(self._host, stderr, has_logged_in=has_answered)

    def not_runnable(self, error: OSError) -> ClusterError:
        """See `CommandConnector.not_runnable`."""
        return ssh_not_runnable(error)

    def has_lost_host(self) -> bool:
        """Return whether the shared connection has ended, as far as ssh has noticed."""
        return not self.is_connected()

    def is_connected(self) -> bool:
        """Return whether the shared connection exists, as far as ssh has noticed."""
        connection = connect_unix(self.control_path)
        if connection is not None:
            connection.close()
        return connection is not None

    def read_agent(self) -> RemoteAgent | None:
        """Return the host's agent according to the record, if there is one."""
        try:
            record = json.loads(self._socket_path.with_suffix(".json").read_bytes())
            return RemoteAgent(str(record["socket"]), int(record["pid"]), bool(record["is_forwardable"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def write_agent(self, agent: RemoteAgent) -> None:
        """Record the host's agent. Without a record, the next command asks the host."""
        with contextlib.suppress(OSError):
            write_atomically(self._socket_path.with_suffix(".json"), json.dumps(asdict(agent)).encode(), is_shared=True)

    def forget_agent(self) -> None:
        """Remove the record of where the agent listens, so that its socket is forwarded again."""
        with contextlib.suppress(OSError):
            self._socket_path.with_suffix(".json").unlink()

    def connect(self, agent: RemoteAgent) -> socket.socket | None:
        """Connect to an agent's forwarded socket, after ssh has forwarded it if necessary; None if ssh does not.

        That the connection is accepted says nothing of the agent: if it does not listen, or the host's ssh server does
        not forward sockets, ssh closes the connection.
        """
        return self._connect_if_forwarded(agent) or (connect_unix(self._socket_path) if self.forward(agent) else None)

    def _connect_if_forwarded(self, agent: RemoteAgent) -> socket.socket | None:
        record = self.read_agent()
        return connect_unix(self._socket_path) if record and record.socket == agent.socket else None

    def forward(self, agent: RemoteAgent) -> bool:
        """Have an agent's socket forwarded, and record it; return False if ssh does not forward it.

        Whether the host's ssh server does is not known until the socket is used.
        """
        if not (agent.is_forwardable and _FORWARDABLE.fullmatch(agent.socket)):
            return False
        if not self.is_connected():
            retry_while_busy(self._start)
        local = self._socket_path
        forwarding = ":".join(re.sub(r"[\\:]", r"\\\g<0>", str(path)) for path in (local, agent.socket))
        with locked_folder(local.parent):
            connection = self._connect_if_forwarded(agent)
            if connection is None:
                # ssh considers a socket forwarded, and does not create it again, even if its file has been removed.
                self._control("cancel", "-L", forwarding)
                if not self._control("forward", "-L", forwarding):
                    return False
            else:  # another command was faster
                connection.close()
            self.write_agent(agent)
        return True

    @contextlib.contextmanager
    def forward_port(self, local: int, remote: int) -> Iterator[None]:
        """See `LocalTransport.forward_port`."""
        if not self.is_connected():
            retry_while_busy(self._start)
        forwarding = f"127.0.0.1:{local}:127.0.0.1:{remote}"
        if not self._control("forward", "-L", forwarding):
            raise ClusterError(f"host {self._host.name!r}: ssh cannot forward port {local} of this machine")
        try:
            yield
        finally:
            self._control("cancel", "-L", forwarding)

    def _start(self) -> None:
        command = ssh_command(self._host, "true", control_path=self.control_path)
        # A file, since the process in the background would keep a pipe open.
        with self.login(), tempfile.TemporaryFile() as stderr:
            try:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    timeout=settings.SSH_FIRST_MESSAGE_SECONDS,
                    check=False,
                    start_new_session=True,  # a Ctrl-C is for the command, not for the connection
                ).returncode
            except OSError as error:
                raise ssh_not_runnable(error) from error
            except subprocess.TimeoutExpired:
                raise no_response(self._host.name, self.typed("true"), settings.SSH_FIRST_MESSAGE_SECONDS) from None
            if code == SSH_FAILED:
                stderr.seek(0)
                raise self.failure(code, stderr.read().decode(errors="replace"), has_answered=False)

    def close(self) -> None:
        """Close the shared connection as soon as its last session has ended, and remove the forwarded socket."""
        with contextlib.suppress(ClusterError, OSError):
            if self.control_path.exists():
                self._control("stop")
            for path in (self._socket_path, self._socket_path.with_suffix(".json")):
                path.unlink(missing_ok=True)

    def _control(self, command: str, *arguments: str) -> bool:
        """Have the process of the shared connection execute a command (`-O` in ssh(1)); return whether it did."""
        # Without the user's configuration: forwardings that it asks for would be set up, too.
        argv = ["ssh", "-F", "none", "-S", str(self.control_path), "-O", command, *arguments, "--"]
        try:
            process = subprocess.run(
                [*argv, self._host.destination],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=settings.SSH_CONTROL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        except OSError as error:
            raise ssh_not_runnable(error) from error
        return process.returncode == 0
