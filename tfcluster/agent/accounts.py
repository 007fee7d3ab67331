"""Finds the other accounts of this host that can log in, in the files that say so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfcluster.core.accounts import OtherAccounts

_NAMES_TOLD = 3
_NOBODY_UID = 65534
_FIRST_UID = 1000  # where /etc/login.defs does not say otherwise
# Some distributions list these in /etc/shells.
_NO_SHELLS = frozenset({"nologin", "false", "true", "sync", "halt", "shutdown"})


def other_accounts() -> OtherAccounts | None:
    """Find the other login accounts of this host; None where there are none.

    /etc/passwd is read as a file: the C library's functions may ask a directory server, which can take minutes.
    """
    passwd = _read("/etc/passwd")
    uid = os.getuid()
    names = login_accounts(passwd, _read("/etc/login.defs"), _read("/etc/shells"), uid)
    if not names:
        return None
    user = next((entry.name for entry in _entries(passwd) if entry.uid == uid), f"uid {uid}")
    return OtherAccounts(user, len(names), tuple(names[:_NAMES_TOLD]))


def login_accounts(passwd: str, login_defs: str, shells: str, uid: int) -> list[str]:
    """Find the accounts of people, other than our own, that have a shell.

    Args:
        passwd: What /etc/passwd contains.
        login_defs: What /etc/login.defs contains; empty where it is missing.
        shells: What /etc/shells contains; empty where it is missing.
        uid: Our own user id.
    """
    limits = dict(_limits(login_defs))
    first, last = limits.get("UID_MIN", _FIRST_UID), limits.get("UID_MAX")
    listed = {line.strip() for line in shells.splitlines() if line.startswith("/")}
    return [
        entry.name
        for entry in _entries(passwd)
        if entry.uid not in (uid, _NOBODY_UID)
        and entry.uid >= first
        and (last is None or entry.uid <= last)
        and Path(entry.shell).name not in _NO_SHELLS
        and (not listed or entry.shell in listed)
    ]


@dataclass(frozen=True)
class _Entry:
    """A line of /etc/passwd."""

    name: str
    uid: int
    shell: str


def _entries(passwd: str) -> Iterator[_Entry]:
    """The well-formed lines; others, such as a comment or the `+` of NIS, are no accounts."""
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[0] and fields[2].isdecimal():
            yield _Entry(fields[0], int(fields[2]), fields[6].strip() or "/bin/sh")  # passwd(5)


def _limits(login_defs: str) -> Iterator[tuple[str, int]]:
    """The range of user ids that are given to people."""
    for line in login_defs.splitlines():
        match line.split():
            case ["UID_MIN" | "UID_MAX" as name, number, *_] if number.isdecimal():
                yield name, int(number)


def _read(path: str) -> str:
    """What a file contains; nothing where it is missing or cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
