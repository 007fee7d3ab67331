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


def has_control_path(options: Mapping[str, str]) -> bool:
    """Return whether the user's configuration names a shared connection for a host with these options, or may do so.

    There are no options if ssh has not said them in time.
    """
    return not options or options.get("controlpath", "none") != "none"


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
def login_slot(options: Mapping[str, str]) -> Iterator[None]:
    """Wait until a login to a host with these options may begin; it ends when the context is left.

    If too many are in progress, sshd refuses some.
    """
    with _lock:
        slots = _logins[find_entrance(options)]
    with slots:
        yield
