"""How a command gets to a host: by ssh (see `ssh`), or by the command that the spec names with `connect:`."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Protocol

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.errors import HostUnreachableError, clean_lines
from tfcluster.transport.quoting import quote
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX

if TYPE_CHECKING:
    from tfcluster.transport.ssh_master import SshMaster

#: The message that the shell on a host sends before it runs anything, where the way there needs that.
SHELL_MESSAGE = {"reached": True}
_COMMAND = "{command}"
# A word of `connect:` that is only there if the command has a terminal.
_TERMINAL = re.compile(r"\{terminal:(.+)\}")


class Connector(Protocol):
    """How a command gets to one host: a program on this machine, whose standard streams are those of the command."""

    program: str  # such as `ssh`

    @property
    def master(self) -> SshMaster | None:
        """Return the connection that commands share, which forwards sockets and ports; None if there is none."""

    def argv(self, command: str, *, is_terminal: bool = False) -> list[str]:
        """Return the command line on this machine that runs a line of a shell on the host, there with a terminal."""

    def session_argv(self, command: str, *, is_shared: bool = True) -> list[str]:
        """Return the command line that runs a line of a shell on the host, and exchanges messages with it.

        With `is_shared`, it uses the connection that commands share, or opens it, which leaves that on this machine.
        """

    def typed(self, command: str) -> str:
        """Return what a user types on this machine to run a line of a shell on the host."""

    def has_failed(self, code: int | None, *, is_at_shell: bool) -> bool:
        """Return whether a program that has ended did not reach the host, or has lost it.

        `is_at_shell`: the shell there has answered, but not yet what it runs. The code is None if the program has not
        ended, only closed its output.
        """

    def failure(self, code: int | None, stderr: str) -> HostUnreachableError:
        """Return the error for a program that has failed, by its exit code and what it printed."""

    def not_runnable(self, error: OSError) -> ClusterError:
        """Return the error that the program cannot be run on this machine."""


class CommandConnector:
    """The command of `connect:`, such as `docker exec -i {host}` or `kubectl exec -i {host} --`.

    What its exit codes mean depends on the program. So the first line of a session is printed by the shell on the host:
    if it does not arrive, the program has not reached the host.
    """

    master = None

    def __init__(self, host: Host) -> None:
        assert host.connect is not None, "other hosts are reached by ssh"
        names = {"{host}": host.name, "{address}": host.address}
        pattern = re.compile("|".join(map(re.escape, names)))
        self._host = host
        self._words = [pattern.sub(lambda match: names[match[0]], word) for word in shlex.split(host.connect)]
        self.program = self._words[0]

    def argv(self, command: str, *, is_terminal: bool = False) -> list[str]:
        """See `Connector.argv`."""
        return self._argv(f"exec {command}", is_terminal)

    def session_argv(self, command: str, *, is_shared: bool = True) -> list[str]:
        """See `Connector.session_argv`."""
        return self._argv(f"echo {quote([MESSAGE_PREFIX + json.dumps(SHELL_MESSAGE)])}; exec {command}", False)

    def _argv(self, line: str, is_terminal: bool) -> list[str]:
        words: list[str] = []
        for word in self._words:
            option = _TERMINAL.fullmatch(word)
            words += [word] if option is None else [option[1]] * is_terminal
        shell = ["sh", "-c", line]
        if any(_COMMAND in word for word in words):
            return [word.replace(_COMMAND, quote(shell)) for word in words]
        return [*words, *shell]

    def typed(self, command: str) -> str:
        """See `Connector.typed`."""
        return shlex.join(self._argv(command, False))

    def has_failed(self, code: int | None, *, is_at_shell: bool) -> bool:
        """See `Connector.has_failed`."""
        return not is_at_shell

    def failure(self, code: int | None, stderr: str) -> HostUnreachableError:
        """See `Connector.failure`."""
        end = "closed its output" if code is None else f"ended with exit code {code}"
        lines = clean_lines(stderr)[-settings.SSH_ERROR_LINES :]
        said = "".join(f"\n  {line}" for line in lines) or ", and printed no error"
        typed = f"`{self.typed('true')}`"
        hint = f"{typed} shows more." if lines else f"{typed} prints nothing either: correct `connect:` in the spec."
        return HostUnreachableError(self._host.name, f"{self.program} {end}{said}", hint)

    def not_runnable(self, error: OSError) -> ClusterError:
        """See `Connector.not_runnable`."""
        return HostUnreachableError(
            self._host.name,
            f"cannot run {self.program}: {error.strerror}",
            "Correct `connect:` of this host in the spec, or install that program on this machine.",
        )
