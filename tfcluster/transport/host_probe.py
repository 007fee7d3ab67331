"""Probe this host for what an agent needs in order to start; the agent itself runs all further preflight checks."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import time
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.paths import state_home
from tfcluster.tf_install import find_tensorflow_library, tensorflow_version


def survey(destination: str) -> dict[str, Any]:
    """Survey this host without importing TensorFlow.

    Args:
        destination: The destination for ssh, for the commands in the hints of the problems.

    Returns:
        `python`, `version`, `tensorflow` and `free_bytes`, as in `HostReport`, and `problems`, a list of ClusterErrors
        as JSON.
    """
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "tensorflow": tensorflow_version(),
        "free_bytes": _free_bytes(),
        "problems": [problem.to_json() for problem in _missing(destination)],
    }


def now() -> float:
    """Return the time of this host's clock, in Unix seconds."""
    return time.time()


def _missing(destination: str) -> list[ClusterError]:
    """Return an error for each package that an agent needs and that is not installed for this Python.

    Args:
        destination: The destination for ssh, for the command in the hint.
    """
    missing = {}
    try:
        find_tensorflow_library()
    except ClusterError as problem:
        missing["tensorflow"] = problem.message
    if importlib.util.find_spec("psutil") is None:
        missing["psutil"] = f"psutil is not installed for {sys.executable}"
    # The command is quoted twice, because two shells parse it: the one in which it is typed and the host's.
    typed = f"ssh {shlex.quote(destination)} {shlex.quote(shlex.quote(sys.executable))}"
    hint = f"Install with `{typed} -m pip install {' '.join(missing)}`."
    return [ClusterError(message, hint=hint) for message in missing.values()]


def _free_bytes() -> int:
    """Return the free disk space for the state of clusters in bytes, or 0 if it cannot be determined."""
    folder = state_home()
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        found = os.statvfs(there)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
