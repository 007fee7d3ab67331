"""The user's own OpenSSH client as the way to a host.

Each session is an ssh of its own. What `exec` runs shares one connection, in the background, which OpenSSH calls a
ControlMaster; it exits some minutes after the last command. If the user's configuration names such a connection for the
host (ControlPath), everything uses that one, or else connects directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.runtime_dir import ssh_control_path
from tfcluster.transport import ssh_config
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.shell import LOGIN, REACHED, SHELL, say, typed

#: The exit code of ssh if ssh itself failed, not the command that it ran.
SSH_FAILED = 255
#: The options of an ssh that has a connection of its own, and leaves nothing behind on this machine.
UNSHARED: Mapping[str, object] = {"ControlMaster": "no", "ControlPath": "none"}
#: The options that decide whether ssh runs a command with its standard streams, and the first version that has them.
_COMMAND_OPTIONS = {"SessionType": "default", "StdinNull": "no", "ForkAfterAuthentication": "no"}
_COMMAND_OPTIONS_VERSION = (8, 7)


def ssh_command(
    host: Host, *arguments: str, sharing: Mapping[str, object], is_terminal: bool = False, says_login: bool = False
) -> list[str]:
    """Return the argv of an ssh to a host, with a login shell if there are no arguments.

    `sharing` has the options that say which connection it uses. With `says_login`, ssh sends a message when it has
    logged in, unless it uses a shared connection that exists.
    """
    options = {
        "BatchMode": "yes",  # ssh must not ask for a password: there is no terminal
        "LogLevel": "ERROR",  # suppresses the banner, but not the errors
        "RemoteCommand": "none",
        **(_COMMAND_OPTIONS if ssh_config.version() >= _COMMAND_OPTIONS_VERSION else {}),
        "PermitLocalCommand": "yes" if says_login else "no",
        **({"LocalCommand": say({REACHED: LOGIN})} if says_login else {}),
        "ClearAllForwardings": "yes",
        "ConnectTimeout": settings.SSH_CONNECT_SECONDS,
        "ServerAliveInterval": settings.SSH_KEEPALIVE_SECONDS,
        "ServerAliveCountMax": settings.SSH_KEEPALIVE_PROBES,
        **sharing,
    }
    flags = (word for name, value in options.items() for word in ("-o", f"{name}={value}"))
    return ["ssh", "-t" if is_terminal else "-T", *flags, "--", host.destination, *arguments]


class SshConnector:
    """The ssh to a host; see `CommandConnector`."""

    program = "ssh"
    first_input = b""

    def __init__(self, cluster: str, host: Host) -> None:
        self._cluster = cluster
        self._host = host

    @cached_property
    def _options(self) -> Mapping[str, str]:
        """The options that the user's ssh has for the host."""
        return dict(ssh_config.read_options(self._host.destination))

    def _sharing(self, default: Mapping[str, object]) -> Mapping[str, object]:
        """Return the options of the connection that an ssh uses: the user's own if the configuration names one."""
        return {"ControlMaster": "no"} if ssh_config.has_control_path(self._options) else default

    @property
    def control_path(self) -> Path:
        """Return the path of the control socket of the connection that `exec` shares."""
        return ssh_control_path(self._cluster, self._host.destination)

    def argv(self, command: str, *, is_terminal: bool = False) -> list[str]:
        """See `CommandConnector.argv`."""
        path, seconds = self.control_path, settings.SSH_PERSIST_SECONDS
        sharing = self._sharing({"ControlMaster": "auto", "ControlPersist": seconds, "ControlPath": path})
        return ssh_command(self._host, command, sharing=sharing, is_terminal=is_terminal)

    def session_argv(self, command: str) -> list[str]:
        """See `CommandConnector.session_argv`."""
        line = f"{say({REACHED: SHELL})}; exec {command}"
        return ssh_command(self._host, line, sharing=self._sharing(UNSHARED), says_login=True)

    def login(self) -> AbstractContextManager[None]:
        """See `CommandConnector.login`."""
        return ssh_config.login_slot(self._options)

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
        return ClusterError(f"cannot run ssh: {error.strerror}", hint="Install OpenSSH's client.")

    def close(self) -> None:
        """Close the connection that `exec` shares as soon as its last command has ended."""
        with contextlib.suppress(ClusterError):  # there is no folder for it
            path = self.control_path
            if path.exists():
                # Without the user's configuration: ssh would also set up the forwardings that it asks for.
                ssh_config.run(["ssh", "-F", "none", "-S", str(path), "-O", "stop", "--", self._host.destination])
