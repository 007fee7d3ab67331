"""Classify the errors that ssh prints, and return errors with a hint that says what to type."""

from __future__ import annotations

import re
import shlex

from tfcluster.core.hosts import Host
from tfcluster.transport.base import HostUnreachableError

#: The exit code of ssh if ssh itself failed, not the command that it ran.
SSH_FAILED = 255

_LOOK = "`{ssh}` tells more."
# Patterns of ssh's output, each with a message that precedes ssh's last line and a hint. The first match counts.
_KINDS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "it shows another host key than the one known here",
        "If it was set up anew, remove the old key{known} and type `{ssh}`, which shows the new one's fingerprint. "
        "If it was not, somebody may be listening in between.",
    ),
    (
        r"Host key verification failed|host key is known for",
        "its host key is not known here",
        "Type `{ssh}` once, compare the fingerprint that it shows with the host's, and answer yes.",
    ),
    (
        r"Permission denied \([^)]*(password|keyboard-interactive)",
        "it wants a password, as none of your keys is accepted",
        "Type `ssh-copy-id {destination}`, which takes the password once.",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "none of your keys is accepted",
        "Add your public key to ~/.ssh/authorized_keys there, or name the right one in ~/.ssh/config (`ssh-add` one "
        "that has a passphrase); `ssh -v {destination}` tells which were tried.",
    ),
    (
        r"Could not resolve hostname",
        "",
        "Write the name as ssh knows it to `ssh:` in the spec, or add it to ~/.ssh/config.",
    ),
    (r"Connection refused", "", "Is sshd running there, and on that port? " + _LOOK),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "",
        "Is it on, and does a firewall let ssh through? " + _LOOK,
    ),
    (r"bad configuration option", "", "Mend ~/.ssh/config."),
)
_KNOWN_KEY = re.compile(r"Offending .*key in (\S+):(\d+)")


def lines_of(words: str) -> list[str]:
    """Return the lines of another program's output without blank lines.

    Of a Python traceback only the last line is kept.
    """
    lines = [line.strip() for line in words.expandtabs().splitlines()]
    lines = [line for line in lines if line]
    trace = next((number for number, line in enumerate(lines) if line.startswith("Traceback (")), len(lines))
    return [*lines[:trace], *lines[trace:][-1:]]


def unreachable(host: Host, words: str) -> HostUnreachableError:
    """Return the error for an ssh that could not connect to a host.

    Args:
        host: The host.
        words: The output of ssh.
    """
    last = (lines_of(words) or ["the connection broke, and ssh said nothing"])[-1]
    said, hint = next(
        ((said, hint) for pattern, said, hint in _KINDS if re.search(pattern, words, re.IGNORECASE)), ("", _LOOK)
    )
    destination = shlex.quote(host.destination)
    key = _KNOWN_KEY.search(words)
    known = f" (line {key[2]} of {key[1]})" if key else ""
    return HostUnreachableError(
        host.name,
        f"{said} ({last})" if said else last,
        hint.format(ssh=f"ssh {destination}", destination=destination, known=known),
    )
