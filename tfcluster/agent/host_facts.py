"""Facts about this host that need no TensorFlow: its GPUs and its other login accounts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import OtherAccounts
from tfcluster.processes.gpus import count_gpus

_NOBODY_UID = 65534
_FIRST_UID = 1000  # the default if /etc/login.defs does not set UID_MIN
# Programs that refuse a login; some distributions list them in /etc/shells.
_NO_SHELLS = frozenset({"nologin", "false", "true", "sync", "halt", "shutdown"})


def gpu_ids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """List the GPUs that tasks may use, in the notation of CUDA_VISIBLE_DEVICES; none if there is no driver.

    If CUDA_VISIBLE_DEVICES is set in the agent's environment, only the GPUs that it allows are listed. Otherwise all
    GPUs of the driver are listed by their index in PCI bus order.
    """
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        names = [name.strip() for name in allowed.split(",")]
        # CUDA ignores an invalid entry and all entries after it.
        end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:end]
    return [str(number) for number in range(count_gpus())]


def other_accounts() -> OtherAccounts | None:
    """Find the other login accounts of this host; None if there are none.

    Reads /etc/passwd as a file: the C library's functions may query a directory server, which can take minutes.
    """
    passwd = _read("/etc/passwd")
    uid = os.getuid()
    names = login_accounts(passwd, _read("/etc/login.defs"), _read("/etc/shells"), uid)
    if not names:
        return None
    user = next((entry.name for entry in _entries(passwd) if entry.uid == uid), f"uid {uid}")
    return OtherAccounts(user, len(names), tuple(names[: settings.LISTED_EXAMPLES]))


def login_accounts(passwd: str, login_defs: str, shells: str, uid: int) -> list[str]:
    """Find the accounts of people other than the current user that have a login shell.

    The arguments are the contents of the files in /etc, empty for a missing file, and the user id of the current user.
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
    """Yield the well-formed lines; other lines, such as a comment or the `+` of NIS, are not accounts."""
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[0] and fields[2].isdecimal():
            yield _Entry(fields[0], int(fields[2]), fields[6].strip() or "/bin/sh")  # the default, see passwd(5)


def _limits(login_defs: str) -> Iterator[tuple[str, int]]:
    """Yield the settings that limit the range of user ids assigned to people."""
    for line in login_defs.splitlines():
        match line.split():
            case ["UID_MIN" | "UID_MAX" as name, number, *_] if number.isdecimal():
                yield name, int(number)


def _read(path: str) -> str:
    """Return the content of a file, or an empty string if the file is missing or unreadable."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
