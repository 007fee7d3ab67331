"""The errors of OpenSSH, by what it prints: what is wrong, and what to type."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from tfcluster.core.hosts import Host
from tfcluster.transport import ssh_config
from tfcluster.transport.channel import connect_unix
from tfcluster.transport.errors import HostBusyError, HostUnreachableError, clean_lines
from tfcluster.transport.shell import typed


class _Failure(NamedTuple):
    pattern: str  # of a line of ssh's output
    message: str  # precedes that line; {methods} is what the host still accepts
    hint: str
    is_busy: bool = False  # sshd has closed the connection before the login: it is tried again


_SSH_HINT = "`{ssh}` shows more."
_BUSY = (
    "sshd refuses the login, probably because too many are in progress there",
    "Try again. If it happens often, raise MaxStartups in the sshd_config of that machine, such as `MaxStartups 100`; "
    f"a jump host has one too. {_SSH_HINT}",
    True,
)
# The first one that matches a line counts.
_FAILURES = (
    _Failure(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key differs from the one known here",
        "If it was installed again, remove the old key{known} and type `{ssh}`, which shows the new one's fingerprint. "
        "If it was not, another machine may be reading the connection.",
    ),
    _Failure(
        r"Host key verification failed|host key is known for",
        "its host key is not known here",
        "Type `{ssh}` once, compare the fingerprint that it shows with the host's, and answer yes.",
    ),
    _Failure(
        r"Too many authentication failures",
        "ssh offered more keys than the host lets one login try",
        "Name the right one for this host in ~/.ssh/config: `IdentityFile ~/.ssh/KEY` and `IdentitiesOnly yes`; "
        "`ssh -v {destination}` shows which keys were tried.",
    ),
    _Failure(
        r"Permission denied \((?![^)]*publickey)[^)]*gssapi",
        "it requires a Kerberos ticket ({methods})",
        "Type `kinit`, and try again; `GSSAPIAuthentication yes` must be set for this host in ~/.ssh/config.",
    ),
    _Failure(
        r"Permission denied \((?![^)]*publickey)",
        "a key alone is not accepted; it requires {methods}",
        "{share}Type `{ssh}` once, keep it open, and try again: tfcluster uses its connection.",
    ),
    _Failure(
        r"Permission denied \([^)]*(password|keyboard-interactive)",
        "it requires a password, because none of your keys is accepted",
        "Type `ssh-copy-id {destination}`, which asks for the password once.",
    ),
    _Failure(
        r"Permission denied",
        "none of your keys is accepted",
        "Add your public key to ~/.ssh/authorized_keys there, or name the right one in ~/.ssh/config (`ssh-add` one "
        "that has a passphrase); `ssh -v {destination}` shows which keys were tried.",
    ),
    _Failure(
        r"Could not resolve hostname",
        "",
        "Set `ssh:` in the spec to the name that ssh knows, or add it to ~/.ssh/config.",
    ),
    _Failure(r"Connection refused", "", "Is sshd running there, and on that port? " + _SSH_HINT),
    _Failure(
        r"timed out|No route to host|Network is unreachable|Host is down",
        "",
        "Is it on, and does a firewall let ssh through? " + _SSH_HINT,
    ),
    _Failure(r"open failed: ", "the jump host does not connect to it", _SSH_HINT),
    _Failure(r"bad configuration option", "", "Correct ~/.ssh/config."),
    _Failure(r"not found|No such file", "", "Correct `ProxyCommand` in ~/.ssh/config, if it is set. " + _SSH_HINT),
    _Failure(r"^Connection (closed|reset) by (?!UNKNOWN)\S+ port \d+", *_BUSY),
    _Failure(r"^(kex|ssh)_exchange_identification: .*(closed|reset)|^Connection (closed|reset) by ", *_BUSY),
)
_OTHER = _Failure("", "", _SSH_HINT)
# What comes before, for a user whose ssh keeps no connection for others.
_SHARE = "Set `ControlMaster auto`, `ControlPath ~/.ssh/%C` and `ControlPersist 8h` for this host in ~/.ssh/config. "
_WRONG_PASSPHRASE = "incorrect passphrase"  # ssh-keygen's message about a key that has one, if none is given
_AGENT = "SSH_AUTH_SOCK"
_KNOWN_KEY = re.compile(r"Offending .*key in (\S+):(\d+)")
_METHODS = re.compile(r"Permission denied \(([^)]*)\)")


def classify_ssh_error(host: Host, output: str, *, has_logged_in: bool = False) -> HostUnreachableError:
    """Return the error for an ssh that could not connect to a host, or lost the connection, by its output."""
    lines = clean_lines(output) or ["the connection broke, and ssh printed nothing"]
    failure, line = next(
        (
            (failure, line)
            for failure in _FAILURES
            if not (failure.is_busy and has_logged_in)
            for line in lines
            if re.search(failure.pattern, line, re.IGNORECASE)
        ),
        (_OTHER, lines[-1]),
    )
    methods = found[1].split(",") if (found := _METHODS.search(line)) else []
    destination = typed([host.destination])
    key = _KNOWN_KEY.search(output)
    known = f" (line {key[2]} of {key[1]})" if key else ""
    message = failure.message.format(methods=" or ".join(methods))
    share = _SHARE if "{share}" in failure.hint and _shares_nothing(host.destination) else ""
    hint = failure.hint.format(ssh=f"ssh {destination}", destination=destination, known=known, share=share)
    if "publickey" in methods:
        message, hint = _explain_refused_keys(host.destination) or (message, hint)
    shown = line.strip("@ ")  # a changed host key is announced in a frame
    error = HostBusyError if failure.is_busy else HostUnreachableError
    return error(host.name, f"{message} ({shown})" if message else shown, hint)


def _shares_nothing(destination: str) -> bool:
    return not ssh_config.has_control_path(dict(ssh_config.read_options(destination)))


def _explain_refused_keys(destination: str) -> tuple[str, str] | None:
    """Return a message and a hint if ssh could not use a key here, or the ssh-agent that it would have used."""
    dead = find_dead_agent(destination)
    if locked := find_locked_key(destination):
        key, has_agent = locked
        start = "" if has_agent else "`eval $(ssh-agent)`, then "
        why = dead or ("the ssh-agent does not have it" if has_agent else "no ssh-agent is running")
        return (
            f"the key {key} has a passphrase, and {why}",
            f"Type {start}`{typed(['ssh-add', str(key)])}`, which asks for the passphrase once. If the host does not "
            f"know that key: `{typed(['ssh', '-v', destination])}` shows which keys were tried.",
        )
    if dead is None:
        return None
    return (
        f"none of your keys is accepted, and {dead}",
        "A shell of tmux or screen keeps that of an earlier login: `export SSH_AUTH_SOCK=…` with what `echo "
        "$SSH_AUTH_SOCK` prints in a new login. Or start one: `eval $(ssh-agent)`, then `ssh-add`.",
    )


def find_dead_agent(destination: str) -> str | None:
    """Return what is wrong with the socket of the ssh-agent that ssh would use; None if nothing is."""
    agent = dict(ssh_config.read_options(destination)).get("identityagent", _AGENT)
    path = os.environ.get(_AGENT, "") if agent == _AGENT else os.path.expandvars(os.path.expanduser(agent))
    if path in ("", "none"):
        return None
    if (connection := connect_unix(Path(path))) is not None:
        connection.close()
        return None
    problem = "does not answer" if os.path.exists(path) else "does not exist"
    return f"the socket of the ssh-agent {problem} ({_AGENT if agent == _AGENT else 'IdentityAgent'}={path})"


def find_locked_key(destination: str) -> tuple[Path, bool] | None:
    """Find a key that ssh would offer to a host if its passphrase were typed, and whether an ssh-agent runs."""
    options = ssh_config.read_options(destination)
    agent = dict(options).get("identityagent", _AGENT)
    code, loaded = ssh_config.run(["ssh-add", "-l"], {} if agent == _AGENT else {_AGENT: agent})
    for path in [Path(os.path.expanduser(value)) for name, value in options if name == "identityfile"]:
        if _WRONG_PASSPHRASE in ssh_config.run(["ssh-keygen", "-y", "-P", "", "-f", str(path)])[1]:
            # The fingerprint is the second word.
            is_unknown, text = ssh_config.run(["ssh-keygen", "-l", "-f", str(path)])
            if is_unknown or text.split()[1] not in loaded:
                return path, code != ssh_config.NOT_RUN
    return None
