"""Facts about this host that need no TensorFlow: its GPUs and its other login accounts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import OtherAccounts
from tfcluster.processes.gpus import count_gpus

_NOBODY_UID = 65534
_FIRST_UID = 1000  # of people's accounts, in all common distributions
_NO_SHELLS = frozenset({"nologin", "false", "true", "sync", "halt", "shutdown"})  # programs that refuse a login


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
    try:
        passwd = Path("/etc/passwd").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    uid = os.getuid()
    user, names = login_accounts(passwd, uid)
    return OtherAccounts(user or f"uid {uid}", len(names), tuple(names[: settings.LISTED_EXAMPLES])) if names else None


def login_accounts(passwd: str, uid: int) -> tuple[str, list[str]]:
    """Return the name of a user, empty if unknown, and the other accounts of people that have a login shell.

    `passwd` is the content of /etc/passwd. Lines such as a comment or the `+` of NIS are not accounts.
    """
    user, names = "", []
    for name, _, number, _, _, _, shell in (line.split(":") for line in passwd.splitlines() if line.count(":") == 6):
        if not name or not number.isdecimal():
            continue
        if int(number) == uid:
            user = user or name
        elif _FIRST_UID <= int(number) != _NOBODY_UID and Path(shell.strip()).name not in _NO_SHELLS:
            names.append(name)
    return user, names
