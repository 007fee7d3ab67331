"""Where a cluster keeps its files and sockets on a host."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from tfcluster.errors import ClusterError, ExitCode

LOCAL_HOST = "localhost"

#: The file in a state folder that an agent keeps locked while it lives.
LOCK = "lock"

#: The spec that commands take when none is named, in the folder that they are typed in.
DEFAULT_SPEC = Path("cluster.yaml")

#: What a cluster may be called: it names a folder.
CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: How many tasks a job may have.
MAX_TASKS = 1000

_state_root: Path | None = None

# sun_path holds 108 bytes including the closing NUL (unix(7)).
_SOCKET_PATH_LIMIT = 107
_LOCK_BYTES = 1 << 12  # more than a lock file ever holds
_DIGEST = 12
# ssh binds a control socket under a temporary name, which is longer by so much, before it gives it its own.
_SSH_SUFFIX = 17
# What ssh takes in a path as it stands: no blanks, no % or $ that it would expand.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./@:+,=-]*")
# Where systemd creates a folder for each user who is logged in, and where everyone can create one.
_LOGIN_FOLDERS = Path("/run/user")
_TEMPORARY = Path("/tmp")
# The link in the state root to the private folder of a random name, where there is one.
_PRIVATE_LINK = ".private"


def state_home() -> Path:
    """The folder of all clusters' state of this user: $XDG_STATE_HOME/tfcluster, but where `set_state_home` says so."""
    if _state_root is not None:
        return _state_root
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    # A relative one is to be ignored, says the XDG Base Directory Specification.
    base = named if named.is_absolute() else Path("~/.local/state").expanduser()
    return base / "tfcluster"


def set_state_home(folder: Path) -> None:
    """Have this process keep and find all state in a folder of its own: a spec may name one for a host."""
    global _state_root
    _state_root = folder


def state_folder(cluster: str, host: str = LOCAL_HOST) -> Path:
    """The folder with the journal, logs/ and runs/ of one cluster on one host."""
    return state_home() / cluster / host


def agent_socket(cluster: str, host: str = LOCAL_HOST) -> Path:
    """Where the cluster's agent listens: as its lock file says, else where one started now would."""
    return _told_socket(state_folder(cluster, host) / LOCK) or socket_path(cluster, host)


def _told_socket(lock: Path) -> Path | None:
    """Where an agent listens, as its lock file says; None where it does not say."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a named pipe would wait for a writer
        try:
            path = Path(json.loads(os.read(fd, _LOCK_BYTES))["socket"])
        finally:
            os.close(fd)
        fits = len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return path if fits and path.is_absolute() and "\0" not in str(path) else None


def journal_path(cluster: str, host: str = LOCAL_HOST) -> Path:
    """The journal; it exists exactly while the cluster is up on the host, whether or not its agent lives."""
    return state_folder(cluster, host) / "journal.json"


def cluster_registry_path(cluster: str) -> Path:
    """Where the command line notes on which hosts a cluster is that is not on this machine alone."""
    return state_home() / cluster / "hosts.json"


def validate_name(cluster: str) -> str:
    """The name of a cluster as given by a user, once it is known to be no path to somewhere else.

    Raises:
        ClusterError: No cluster can have that name.
    """
    if not CLUSTER_NAME.fullmatch(cluster):
        raise ClusterError(
            f"{cluster!r} cannot be the name of a cluster",
            hint="A name has letters, digits, '_', '.' and '-', and begins with a letter or digit.",
            exit_code=ExitCode.USAGE,
        )
    return cluster


def running_clusters() -> list[str]:
    """Names of the clusters that are up on this machine, or were brought up from it on others; sorted."""
    here = (path.parent.parent.name for path in state_home().glob(f"*/{LOCAL_HOST}/journal.json"))
    return sorted({*here, *(path.parent.name for path in state_home().glob("*/hosts.json"))})


def socket_path(cluster: str, host: str = LOCAL_HOST) -> Path:
    """The Unix socket of the cluster's agent on this machine.

    Two state folders may hold clusters of the same name, so the name of the socket carries a digest of the
    state folder's path; it stands alone where the readable name would pass the kernel's limit.

    Raises:
        ClusterError: No private folder can be made; see `_runtime_folder`.
    """
    digest = hashlib.sha256(os.fsencode(state_folder(cluster, host))).hexdigest()[:_DIGEST]
    folder = _runtime_folder()
    readable = folder / f"{cluster}.{host}.{digest}"
    if len(os.fsencode(readable)) <= _SOCKET_PATH_LIMIT:
        return readable
    return folder / digest


def secrets_path(agent_socket: Path) -> Path:
    """The file for the secret values of the cluster's tasks on this machine, beside its agent's socket."""
    return agent_socket.with_name(f"{agent_socket.name}.secrets")


def ssh_control_path(cluster: str, destination: str) -> Path:
    """The Unix socket of the ssh that holds this machine's connection to a host of the cluster.

    Args:
        cluster: The cluster's name.
        destination: The host as ssh takes it.

    Raises:
        ClusterError: No private folder can be made; see `_runtime_folder`.
    """
    named = "\0".join((str(state_home()), cluster, destination))
    digest = hashlib.sha256(os.fsencode(named)).hexdigest()[:_DIGEST]
    return _runtime_folder(_SSH_SUFFIX, plain=True) / digest


def locks_folder() -> Path:
    """The private folder for the locks that this user's agents on this machine keep each other out by.

    It is the same for all of them, whatever $XDG_RUNTIME_DIR and $XDG_STATE_HOME say, unless another account has taken
    the name of the folder in /tmp.

    Raises:
        ClusterError: No private folder can be made.
    """
    user = _LOGIN_FOLDERS / str(os.getuid())
    if _is_private(user) and _make_private(user / "tfcluster"):
        return user / "tfcluster"
    return _temporary_folder()


def _runtime_folder(room: int = 0, *, plain: bool = False) -> Path:
    """The private folder for sockets, made if missing: in $XDG_RUNTIME_DIR, or else in /tmp.

    Args:
        room: Bytes that must fit behind a path in it.
        plain: Its path must need no quoting in ssh's options.

    Raises:
        ClusterError: The folder in $XDG_RUNTIME_DIR is this user's and others can enter it, or none can be made.
    """
    folder = _xdg_folder(room, plain=plain)
    if folder is not None:
        _refuse_shared(folder)
        # It cannot be made after a logout has removed $XDG_RUNTIME_DIR, for example.
        if _make_private(folder):
            return folder
    return _temporary_folder()


def check_runtime_folder() -> None:
    """Check the private folder for sockets, which is not made if it is missing.

    Raises:
        ClusterError: It is this user's and others can enter it.
    """
    folder = _xdg_folder()
    if folder is not None:
        _refuse_shared(folder)


def _xdg_folder(room: int = 0, *, plain: bool = False) -> Path | None:
    """The folder in $XDG_RUNTIME_DIR; None where there is none that fits, see `_runtime_folder`."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", "")) / "tfcluster"
    # A slash and a digest must fit behind it.
    fits = len(os.fsencode(folder)) + 1 + _DIGEST + room <= _SOCKET_PATH_LIMIT
    suits = folder.is_absolute() and fits and (not plain or _PLAIN_PATH.fullmatch(str(folder)))
    return folder if suits else None


def _refuse_shared(folder: Path) -> None:
    """Refuse a folder of this user's that others can enter: it is the user's to mend.

    Raises:
        ClusterError: It is such a folder.
    """
    try:
        found = folder.lstat()
    except OSError:
        return
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o077:
        raise ClusterError(
            f"{folder}: not a folder that only you can enter (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"Remove it, or chmod 700 it, or set XDG_RUNTIME_DIR; see `ls -ld {folder}`.",
        )


def _temporary_folder() -> Path:
    """The private folder in /tmp.

    Raises:
        ClusterError: None can be made.
    """
    folder = _TEMPORARY / f"tfcluster-{os.getuid()}"
    return folder if _make_private(folder) else _random_folder()


def _random_folder() -> Path:
    """The private folder in /tmp that a link in the state root leads to, made if missing.

    Its name is random: another account may have taken the usual one, as names in /tmp are anyone's.

    Raises:
        ClusterError: It cannot be made.
    """
    import tempfile  # rarely needed, and slow to import

    link = state_home() / _PRIVATE_LINK
    try:
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = os.open(link.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(root, fcntl.LOCK_EX)  # two commands that make it at once agree on one
            with suppress(OSError):  # no link yet
                if _is_private(folder := Path(os.readlink(link))):
                    return folder
            link.unlink(missing_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="tfcluster-", dir=_TEMPORARY))
            try:
                link.symlink_to(folder)
            except OSError:
                folder.rmdir()
                raise
            return folder
        finally:
            os.close(root)
    except OSError as error:
        raise ClusterError(
            f"{error.filename or link.parent}: cannot make a private folder for sockets: {error.strerror}",
            hint="Set XDG_RUNTIME_DIR to a folder that only you can enter.",
        ) from error


def _make_private(folder: Path) -> bool:
    """Make a folder that only this user can enter, if it is missing; return whether it is there and private."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _is_private(folder)


def _is_private(folder: Path) -> bool:
    """Whether a path is a folder that only this user can enter.

    Anyone else who can enter it can replace a socket in it and read what is sent there.
    """
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
