"""Command lines for the shells on the way to a host: quoted for every shell or as a person types, and their messages.

A shell there says that it runs before anything else does: what is sent earlier could be read by its startup files.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping

from tfcluster.paths import HOME_PREFIX
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX

#: The field of the messages that say how far a session has come, and its values in their order. OpenSSH here says that
#: it has logged in, except over a connection that is shared; the bash of `shell:` runs after the first shell there.
REACHED = "reached"
LOGIN, SHELL, ENVIRONMENT = "login", "shell", "environment"
#: By the shell that is awaited: what it is, and the files that it reads before it runs a command.
STARTUP_FILES = {
    SHELL: ("its login shell", "~/.bashrc, ~/.zshenv, ~/.config/fish/config.fish or ~/.cshrc"),
    ENVIRONMENT: ("bash as a login shell, for `shell:`,", "~/.bash_profile, ~/.bash_login or ~/.profile"),
}
# Characters that are special within single quotes: the quote itself in every shell, the backslash in fish, ! in csh.
_SPECIAL = re.compile(r"['\\!]")
_CONDA = re.compile(r"\b(?:conda|mamba)\s+activate\s+(\S+)")


def quote(words: Iterable[str]) -> str:
    """Quote words as a command line that sh, bash, dash, zsh, fish and csh split into the same words.

    A word with a newline does not work in csh.
    """
    return " ".join("'" + _SPECIAL.sub(r"'\\\g<0>'", word) + "'" for word in words)


def quote_path(path: str) -> str:
    """Quote a path as `quote` does, except that `~/` at its beginning is the home folder there."""
    if path.startswith(HOME_PREFIX):
        return f'"$HOME"/{quote([path.removeprefix(HOME_PREFIX)])}'
    return quote([path])


def typed(words: Iterable[str]) -> str:
    """Return a command line as a person types it in a shell such as bash: with quotes only around words that need them.

    A word that is itself a command line with quotes gets the other kind of quotes.
    """
    return " ".join(_quote_typed(word) for word in words)


def typed_path(path: str) -> str:
    """Return a path as `typed` does, except that `~/` at its beginning is the home folder."""
    prefix = HOME_PREFIX if path.startswith(HOME_PREFIX) else ""
    return prefix + typed([path.removeprefix(prefix)])


def _quote_typed(word: str) -> str:
    if "'" not in word or "!" in word:  # within double quotes, a terminal's bash replaces !
        return shlex.quote(word)
    return '"' + re.sub(r'["$`\\]', r"\\\g<0>", word) + '"'


def typed_in_environment(line: str, shell: str | None) -> str:
    """Return a typed command line that runs another one in the environment that a command of bash sets up."""
    return line if shell is None else typed(["bash", "-lc", f"{shell} && {line}"])


def say(message: Mapping[str, str]) -> str:
    """Return the command of a shell that sends a message, on a line of its own even if a terminal echoes the input."""
    return f"printf '\\n{MESSAGE_PREFIX}{json.dumps(message)}\\n'"


def environment_hint(shell: str) -> str:
    """Return what to do about a command of `shell:` that has failed."""
    if conda := _CONDA.search(shell):
        return (
            f"Write `shell: source CONDA/bin/activate {conda[1]}`, with conda's folder there for CONDA (`conda info "
            "--base` prints it): only shells at a terminal define the function that `conda activate` needs."
        )
    return "Correct `shell:` of this host in the spec."
