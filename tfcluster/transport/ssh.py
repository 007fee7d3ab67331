"""The user's own OpenSSH client as the way to a host, with a connection that commands share."""

from __future__ import annotations

import shlex

from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.ssh_errors import SSH_FAILED, classify_ssh_error, ssh_not_runnable
from tfcluster.transport.ssh_master import SshMaster, ssh_command


class SshConnector:
    """The ssh to a host; see `Connector`."""

    program = "ssh"
    first_input = b""

    def __init__(self, cluster: str, host: Host) -> None:
        self._host = host
        self.master = SshMaster(cluster, host)

    def argv(self, command: str, *, is_terminal: bool = False) -> list[str]:
        """See `Connector.argv`."""
        return ssh_command(self._host, command, control_path=self.master.control_path, is_terminal=is_terminal)

    def session_argv(self, command: str, *, is_shared: bool = True) -> list[str]:
        """See `Connector.session_argv`."""
        return ssh_command(self._host, command, control_path=self.master.control_path if is_shared else None)

    def typed(self, command: str) -> str:
        """See `Connector.typed`."""
        return f"ssh {shlex.quote(self._host.destination)} {shlex.quote(command)}"

    def has_failed(self, code: int | None, *, is_at_shell: bool) -> bool:
        """See `Connector.has_failed`."""
        return code in (None, SSH_FAILED)

    def failure(self, code: int | None, stderr: str) -> HostUnreachableError:
        """See `Connector.failure`."""
        return classify_ssh_error(self._host, stderr)

    def not_runnable(self, error: OSError) -> ClusterError:
        """See `Connector.not_runnable`."""
        return ssh_not_runnable(error)
