"""What the OpenSSH client on this machine says of itself: its version, and its configuration for a host (`ssh -G`)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

from tfcluster import settings

#: The exit code of ssh-add if it cannot connect to an agent; also that of a program that cannot be run.
NOT_RUN = 2

_lock = threading.Lock()
_entrances: dict[str, str] = {}  # of the destinations of this process; "" while there is only one
_logins: defaultdict[str, threading.BoundedSemaphore] = defaultdict(
    lambda: threading.BoundedSemaphore(settings.SSH_LOGINS_AT_ONCE)
)


def run(command: list[str], variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a program of OpenSSH; return its exit code and its output, which is empty if it cannot be run."""
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
    return NOT_RUN, ""


@cache
def version() -> tuple[int, ...]:
    """Return the version of ssh, such as (9, 2); () if it is not known."""
    found = re.match(r"OpenSSH_(\d+)\.(\d+)", run(["ssh", "-V"])[1])
    return tuple(map(int, found.groups())) if found else ()


def read_options(destination: str) -> list[tuple[str, str]]:
    """Return the options that ssh has for a destination, with names in lower case; some occur several times."""
    lines = (line.partition(" ") for line in run(["ssh", "-G", "--", destination])[1].splitlines())
    return [(name.lower(), value) for name, _, value in lines]


def find_entrance(options: Mapping[str, str]) -> str:
    """Return what ssh connects to first for a host with these options: its jump host, if it has one."""
    proxy = options.get("proxyjump") or options.get("proxycommand", "none")
    if proxy == "none":
        return f"{options.get('hostname')}:{options.get('port')}"
    for name in ("hostname", "host"):  # one command for each host, as a program might write them
        if value := options.get(name):
            proxy = re.sub(rf"(?<![\w.-]){re.escape(value)}(?![\w.-])", "%h", proxy)
    return proxy


@contextlib.contextmanager
def login_slot(destination: str) -> Iterator[None]:
    """Wait until a login may begin, of which sshd refuses some if it has too many; it ends when the context is left.

    ssh is not asked what the only destination of this process connects to.
    """
    if not _entrances.setdefault(destination, "") and len(_entrances) > 1:
        _entrances[destination] = find_entrance(dict(read_options(destination)))
    with _lock:
        slots = _logins[_entrances[destination]]
    with slots:
        yield
