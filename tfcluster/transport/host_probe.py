"""What a first contact looks for on the host: what its agent cannot do without, which examines all else itself."""

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
    """What there is to know of this host, without importing TensorFlow.

    Args:
        destination: The host as ssh takes it, for what a user is told to type.

    Returns:
        `python`, `version`, `tensorflow`, `free_bytes`, as in `HostReport`, and `problems`: ClusterErrors.
    """
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "tensorflow": tensorflow_version(),
        "free_bytes": _free_bytes(),
        "problems": [problem.to_json() for problem in _missing(destination)],
    }


def now() -> float:
    """What this host's clock says."""
    return time.time()


def _missing(destination: str) -> list[ClusterError]:
    """The packages that an agent needs and this Python has not."""
    missing = {}
    try:
        find_tensorflow_library()
    except ClusterError as problem:
        missing["tensorflow"] = problem.message
    if importlib.util.find_spec("psutil") is None:
        missing["psutil"] = f"psutil is not installed for {sys.executable}"
    # Two shells read it: the one in which it is typed, and the host's.
    typed = f"ssh {shlex.quote(destination)} {shlex.quote(shlex.quote(sys.executable))}"
    hint = f"Install with `{typed} -m pip install {' '.join(missing)}`."
    return [ClusterError(message, hint=hint) for message in missing.values()]


def _free_bytes() -> int:
    """The space left for the state of clusters; 0 where that cannot be told."""
    folder = state_home()
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        found = os.statvfs(there)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
