"""What a first contact looks for on the host: its Python, TensorFlow, space, and whether it is who it should be."""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import sys
import time
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.installed import find_library, tensorflow_version
from tfcluster.places import state_root

# What an agent and its tasks write before anybody has asked them anything.
_NEEDED_BYTES = 64 << 20


def survey(address: str, destination: str) -> dict[str, Any]:
    """What there is to know of this host, without importing TensorFlow.

    Args:
        address: What the other hosts dial.
        destination: The host as ssh takes it, for what a user is told to type.

    Returns:
        `python`, `version`, `tensorflow`, `free_bytes`, as in `Examination`, and `problems`: ClusterErrors.
    """
    problems = [*_missing(destination), *_stranger(address)]
    free = 0
    try:
        free = _free_bytes()
    except ClusterError as problem:
        problems.append(problem)
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "tensorflow": tensorflow_version(),
        "free_bytes": free,
        "problems": [problem.to_json() for problem in problems],
    }


def now() -> float:
    """What this host's clock says."""
    return time.time()


def _missing(destination: str) -> list[ClusterError]:
    """The packages that an agent needs and this Python has not."""
    missing = {}
    try:
        find_library()
    except ClusterError as problem:
        missing["tensorflow"] = problem.message
    if importlib.util.find_spec("psutil") is None:
        missing["psutil"] = f"psutil is not installed for {sys.executable}"
    # Two shells read it: the one in which it is typed, and the host's.
    typed = f"ssh {shlex.quote(destination)} {shlex.quote(shlex.quote(sys.executable))}"
    hint = f"Install with `{typed} -m pip install {' '.join(missing)}`."
    return [ClusterError(message, hint=hint) for message in missing.values()]


def _stranger(address: str) -> list[ClusterError]:
    """That an address is not this machine's."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return [ClusterError(f"it does not know its own address {address!r}: {error.strerror}", hint=_by_ssh())]
    if any(_is_own(family, name) for family, _, _, _, name in found):
        return []
    return [ClusterError(f"{address!r} is not an address of it", hint=_by_ssh())]


def _is_own(family: int, name: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(name)
        except OSError:
            return False
    return True


def _by_ssh() -> str:
    """The address by which ssh has just reached this host, as a line of the spec."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return f"ssh has reached it at {words[2]}: `address: {words[2]}`." if len(words) == 4 else "Name it by `address:`."


def _free_bytes() -> int:
    """The space left for the state of clusters.

    Raises:
        ClusterError: There is not enough, or the folder cannot be written.
    """
    folder = state_root()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        raise ClusterError(f"{there}: cannot be written", hint="Name another folder by `state:`.")
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    if free < _NEEDED_BYTES or (found.f_files and not found.f_favail):
        raise ClusterError(
            f"the disk of {there} is full: {free >> 20} MiB and {found.f_favail} files are free",
            hint="Make room, or name a folder on another one by `state:`.",
        )
    return free
