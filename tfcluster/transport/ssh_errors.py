"""Classify the errors that ssh prints; each returned error has a hint that says what to type.

The keys that ssh cannot use without a terminal are named: those with a passphrase that no ssh-agent has.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.errors import HostUnreachableError, clean_lines

#: The exit code of ssh if ssh itself failed, not the command that it ran.
SSH_FAILED = 255

_SSH_HINT = "`{ssh}` shows more."
# Patterns of ssh's output, each with a message that precedes ssh's last line and a hint. The first match counts.
_ERRORS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key differs from the one known here",
        "If it was installed again, remove the old key{known} and type `{ssh}`, which shows the new one's fingerprint. "
        "If it was not, another machine may be reading the connection.",
    ),
    (
        r"Host key verification failed|host key is known for",
        "its host key is not known here",
        "Type `{ssh}` once, compare the fingerprint that it shows with the host's, and answer yes.",
    ),
    (
        r"Permission denied \([^)]*(password|keyboard-interactive)",
        "it requires a password, because none of your keys is accepted",
        "Type `ssh-copy-id {destination}`, which asks for the password once.",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "none of your keys is accepted",
        "Add your public key to ~/.ssh/authorized_keys there, or name the right one in ~/.ssh/config (`ssh-add` one "
        "that has a passphrase); `ssh -v {destination}` shows which keys were tried.",
    ),
    (
        r"Could not resolve hostname",
        "",
        "Set `ssh:` in the spec to the name that ssh knows, or add it to ~/.ssh/config.",
    ),
    (r"Connection refused", "", "Is sshd running there, and on that port? " + _SSH_HINT),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "",
        "Is it on, and does a firewall let ssh through? " + _SSH_HINT,
    ),
    (r"bad configuration option", "", "Correct ~/.ssh/config."),
)
_NO_KEY_ACCEPTED = re.compile("Permission denied|Too many authentication failures")
_NO_AGENT = 2  # the exit code of ssh-add if it cannot connect to an agent
_WRONG_PASSPHRASE = "incorrect passphrase"  # ssh-keygen's message about a key that has one, if none is given
_KNOWN_KEY = re.compile(r"Offending .*key in (\S+):(\d+)")


def ssh_not_runnable(error: OSError) -> ClusterError:
    """Return the error that ssh cannot be run on this machine."""
    return ClusterError(f"cannot run ssh: {error.strerror}", hint="Install OpenSSH's client.")


def classify_ssh_error(host: Host, output: str) -> HostUnreachableError:
    """Return the error for an ssh that could not connect to a host, by its output."""
    last = (clean_lines(output) or ["the connection broke, and ssh printed nothing"])[-1]
    if _NO_KEY_ACCEPTED.search(output) and (locked := find_locked_key(host.destination)):
        return _locked_key_error(host, *locked, last)
    message, hint = next(
        ((message, hint) for pattern, message, hint in _ERRORS if re.search(pattern, output, re.IGNORECASE)),
        ("", _SSH_HINT),
    )
    destination = shlex.quote(host.destination)
    key = _KNOWN_KEY.search(output)
    known = f" (line {key[2]} of {key[1]})" if key else ""
    return HostUnreachableError(
        host.name,
        f"{message} ({last})" if message else last,
        hint.format(ssh=f"ssh {destination}", destination=destination, known=known),
    )


def _locked_key_error(host: Host, key: Path, has_agent: bool, last: str) -> HostUnreachableError:
    command = f"`ssh-add {shlex.quote(str(key))}`"
    if has_agent:
        why, hint = "the ssh-agent does not have it", f"Type {command}"
    else:
        why, hint = "no ssh-agent is running", f"Type `eval $(ssh-agent)`, then {command}"
    return HostUnreachableError(
        host.name,
        f"the key {key} has a passphrase, and {why} ({last})",
        f"{hint}, which asks for the passphrase once. If the host does not know that key: `ssh -v "
        f"{shlex.quote(host.destination)}` shows which keys were tried.",
    )


def find_locked_key(destination: str) -> tuple[Path, bool] | None:
    """Find a key that ssh would offer to a host if its passphrase were typed, and whether an ssh-agent runs."""
    lines = (line.partition(" ") for line in _run(["ssh", "-G", "--", destination])[1].splitlines())
    options = [(name.lower(), value) for name, _, value in lines]
    agent = next((value for name, value in options if name == "identityagent"), "SSH_AUTH_SOCK")
    code, loaded = _run(["ssh-add", "-l"], {} if agent == "SSH_AUTH_SOCK" else {"SSH_AUTH_SOCK": agent})
    for path in [Path(value).expanduser() for name, value in options if name == "identityfile"]:
        if _WRONG_PASSPHRASE in _run(["ssh-keygen", "-y", "-P", "", "-f", str(path)])[1]:
            is_unknown, text = _run(["ssh-keygen", "-l", "-f", str(path)])  # the fingerprint is the second word
            if is_unknown or text.split()[1] not in loaded:
                return path, code != _NO_AGENT
    return None


def _run(command: list[str], variables: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command; return its exit code and its output, which is empty if it cannot be run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.run(
            command,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=settings.SSH_CONTROL_SECONDS,
            check=False,
        )
        return process.returncode, process.stdout.decode(errors="replace")
    return _NO_AGENT, ""
