"""The paths of this package and of the state home: state directories, journals and registries of hosts."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from pathlib import Path

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode

#: The folder that has the package `tfcluster`, for the Pythons that are started with it.
PACKAGE_ROOT = Path(__file__).parent.parent

LOCAL_HOST = "localhost"

#: The beginning of a path that is in the home folder of the account of a host.
HOME_PREFIX = "~/"

#: The lock file in a state directory, which an agent keeps locked as long as it runs.
LOCK = "lock"

#: The Unix socket in a state directory, on which the agent listens.
SOCKET = "socket"

#: The symbolic link in a state directory to the `PACKAGE_ROOT` of the agent that has written the journal.
CODE_LINK = "code"

#: The default spec of commands, in the current directory.
DEFAULT_SPEC = Path("cluster.yaml")

#: The valid names of clusters; the name of a cluster is also the name of a folder.
CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

#: What to type if a state folder cannot be used.
STATE_HINT = "Set XDG_STATE_HOME (for another host `state:` in the spec) to a folder that you can write to."
_NOT_USABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)

_state_home: Path | None = None


def state_home() -> Path:
    """Return the folder with the state of all of this user's clusters; by default $XDG_STATE_HOME/tfcluster."""
    if _state_home is not None:
        return _state_home
    variable = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG Base Directory Specification says to ignore a relative path.
    if variable.is_absolute():
        return variable / "tfcluster"
    try:
        return Path.home() / ".local" / "state" / "tfcluster"
    except RuntimeError:
        message = "this account has no home folder: HOME is not set, and no entry in /etc/passwd names one"
        raise ClusterError(message, hint="Set HOME, or XDG_STATE_HOME, to a folder of yours.") from None


def set_state_home(folder: Path) -> None:
    """Set the state home of this process, for a spec that names one for a host."""
    global _state_home
    _state_home = folder


def system_error(error: OSError) -> ClusterError:
    """Return the error for a refusal of the operating system, with a hint if the state home cannot be used."""
    where, is_of_state = f"{error.filename}: " if error.filename else "", False
    if error.errno in _NOT_USABLE and isinstance(error.filename, (str, os.PathLike)):
        with contextlib.suppress(ClusterError):  # there is no state home
            home, path = state_home(), Path(error.filename)
            is_of_state = path.is_relative_to(home) or home.is_relative_to(path)
    return ClusterError(f"{where}{error.strerror or error}", hint=STATE_HINT if is_of_state else "")


def current_folder() -> str:
    """Return the current folder; raises ClusterError if it was deleted, so that no relative path leads to a file."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        path = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        hint = 'If it exists again, `cd "$PWD"` enters the new one; otherwise `cd` to another folder.'
        raise ClusterError(f"the current folder {path} was deleted", hint=hint) from None


def state_folder(cluster: str, host: str = LOCAL_HOST) -> Path:
    """Return the folder with a cluster's journal, logs/ and runs/ on one host."""
    return state_home() / cluster / host


def code_cache() -> Path:
    """Return the folder of the code that commands have sent to this host, of all clusters; no cluster has this name."""
    return state_home() / ".code"


def socket_path(cluster: str, host: str = LOCAL_HOST) -> Path:
    """Return the socket of the cluster's agent on one host."""
    return state_folder(cluster, host) / SOCKET


def agent_pid(folder: Path) -> int | None:
    """Return the pid in the lock file of a state folder, which the agent removes when it exits; None if it has none."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a named pipe would block
        try:
            content = json.loads(os.read(fd, settings.LOCK_FILE_MAX_BYTES))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return None
    pid = content.get("pid") if isinstance(content, dict) else None
    return pid if isinstance(pid, int) else None


def journal_path(cluster: str, host: str = LOCAL_HOST) -> Path:
    """Return the path of the journal, which exists as long as the cluster is up on the host, even without an agent."""
    return state_folder(cluster, host) / "journal.json"


def cluster_registry_path(cluster: str) -> Path:
    """Return the file in which the command line records the hosts of a cluster that also uses other hosts."""
    return state_home() / cluster / "hosts.json"


def spec_record_path(cluster: str) -> Path:
    """Return the file in which the command line records the spec that a cluster was started from."""
    return state_home() / cluster / "spec"


def authority_path(cluster: str) -> Path:
    """Return the file with the authority for a private cluster's certificates, and its private key."""
    return state_home() / cluster / "authority.pem"


def make_private_folder(folder: Path) -> None:
    """Create a folder and the missing ones above it, which only this user can enter; existing ones stay as they are.

    With `parents=True`, Path.mkdir gives those above the mode of the umask: with a umask of 0, every account could put
    another folder in this one's place.
    """
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def closest_existing(path: Path) -> Path:
    """Return a path, or the closest folder above it that exists."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))


def validate_name(cluster: str) -> str:
    """Return a cluster's name if it is valid: as it becomes part of paths, it must not lead to another folder."""
    if not CLUSTER_NAME.fullmatch(cluster):
        raise ClusterError(
            f"{cluster!r} cannot be the name of a cluster",
            hint="A name has letters, digits, '_', '.' and '-', and begins with a letter or digit.",
            exit_code=ExitCode.USAGE,
        )
    return cluster


def running_clusters() -> list[str]:
    """Return the sorted names of the clusters that run on this machine or were started from it."""
    local = (path.parent.parent.name for path in state_home().glob(f"*/{LOCAL_HOST}/journal.json"))
    return sorted({*local, *(path.parent.name for path in state_home().glob("*/hosts.json"))})
