"""How a command gets to a host: by ssh (see `ssh`), or by the command that the spec names with `connect:`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.errors import HostUnreachableError, clean_lines
from tfcluster.transport.shell import REACHED, SHELL, quote, say, typed
from tfcluster.transport.ssh import SshConnector

#: The field of the message that the shell sends if its streams cannot be used; its value is a key of `_UNUSABLE`.
UNUSABLE = "unusable"
# What is wrong with the streams that a command gives to what it runs, and what to do about it.
_UNUSABLE = {
    "terminal": (
        "allocates a terminal, which changes the bytes that it passes on",
        "Delete that option, such as -t, from `connect:`, or write it as `{terminal:-t}`: then only `exec` typed on a "
        "terminal has it.",
    ),
    "input": (
        "does not pass on its standard input",
        "Add the option for that to `connect:`: -i for docker, podman and kubectl.",
    ),
}
_COMMAND = "{command}"
# A word of `connect:` that is only there if the command has a terminal.
_TERMINAL = re.compile(r"\{terminal:(.+)\}")


class CommandConnector:
    """The command of `connect:`, such as `docker exec -i {host}` or `kubectl exec -i {host} --`.

    What its exit codes mean depends on the program. So the first line of a session is printed by the shell on the host:
    if it does not arrive, the program has not reached the host. The shell reads a line before, as a program that does
    not pass on its input gives it an empty one.
    """

    first_input = b"\n"  # what a session sends before anything else

    def __init__(self, host: Host) -> None:
        assert host.connect is not None, "other hosts are reached by ssh"
        names = {"{host}": host.name, "{address}": host.address}
        pattern = re.compile("|".join(map(re.escape, names)))
        self._host = host
        self._words = [pattern.sub(lambda match: names[match[0]], word) for word in shlex.split(host.connect)]
        self.program = self._words[0]  # on this machine, such as `docker`

    def argv(self, command: str, *, is_terminal: bool = False) -> list[str]:
        """Return the command line on this machine that runs a line of a shell on the host, there with a terminal."""
        return self._argv(f"exec {command}", is_terminal)

    def session_argv(self, command: str) -> list[str]:
        """Return the command line that runs a line of a shell on the host, and exchanges messages with it."""
        terminal, empty = (say({UNUSABLE: problem}) for problem in ("terminal", "input"))
        reached = f"{say({REACHED: SHELL})}; exec {command}"
        line = f"if [ -t 0 ]; then {terminal}; elif read -r line; then {reached}; else {empty}; fi"
        return self._argv(line, False)

    def _argv(self, line: str, is_terminal: bool, quoted: Callable[[list[str]], str] = quote) -> list[str]:
        words: list[str] = []
        for word in self._words:
            option = _TERMINAL.fullmatch(word)
            words += [word] if option is None else [option[1]] * is_terminal
        shell = ["sh", "-c", line]
        if any(_COMMAND in word for word in words):
            return [word.replace(_COMMAND, quoted(shell)) for word in words]
        return [*words, *shell]

    def login(self) -> AbstractContextManager[None]:
        """Return the context in which the program connects to the host, of which a few may be entered at once."""
        return contextlib.nullcontext()

    def typed(self, command: str) -> str:
        """Return what a user types on this machine to run a line of a shell on the host."""
        return typed(self._argv(command, False, typed))

    def has_failed(self, code: int | None, *, is_at_shell: bool) -> bool:
        """Return whether a program that has ended did not reach the host, or has lost it.

        `is_at_shell`: the shell there has answered, but not yet what it runs. The code is None if the program has not
        ended, only closed its output.
        """
        return not is_at_shell

    def failure(self, code: int | None, stderr: str, *, has_answered: bool) -> HostUnreachableError:
        """Return the error for a program that has failed, by its exit code and what it printed.

        `has_answered`: a message has arrived over the connection.
        """
        end = "closed its output" if code is None else f"ended with exit code {code}"
        lines = clean_lines(stderr)[-settings.SSH_ERROR_LINES :]
        said = "".join(f"\n  {line}" for line in lines) or ", and printed no error"
        typed = f"`{self.typed('true')}`"
        hint = f"{typed} shows more." if lines else f"{typed} prints nothing either: correct `connect:` in the spec."
        return HostUnreachableError(self._host.name, f"{self.program} {end}{said}", hint)

    def close(self) -> None:
        """Close what commands of `exec` share, if anything."""

    def not_runnable(self, error: OSError) -> ClusterError:
        """Return the error that the program cannot be run on this machine."""
        return HostUnreachableError(
            self._host.name,
            f"cannot run {self.program}: {error.strerror}",
            "Correct `connect:` of this host in the spec, or install that program on this machine.",
        )


#: How a command gets to one host: a program on this machine, whose standard streams are those of the command.
Connector = SshConnector | CommandConnector


def unusable_streams(host: Host, program: str, problem: str) -> HostUnreachableError:
    """Return the error that the shell on the host has no streams that a session can use."""
    what, hint = _UNUSABLE[problem]
    return HostUnreachableError(host.name, f"{program} {what}", hint)
