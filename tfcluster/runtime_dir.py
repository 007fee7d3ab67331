"""The private runtime directory of this user, with the secrets of clusters, and the sockets of ssh and of links.

They must be in a directory that no other account can enter: $XDG_RUNTIME_DIR, or else one in /tmp.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST, make_private_folder, state_folder, state_home

# sun_path holds 108 bytes including the closing NUL (unix(7)).
_SOCKET_PATH_LIMIT = 107
_DIGEST = 12
# ssh binds a control socket under a temporary name, which is longer by this number of bytes, and then renames it.
_SSH_SUFFIX = 17
# What a link's socket has after the digest: a dot, and the beginning of the code's hash.
_CODE_SUFFIX = 13
_LINK = "\0link"  # is no destination of ssh
# The paths that ssh takes literally: they contain no blanks, and no % or $ that ssh would expand.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./@:+,=-]*")
# The symbolic link in the state home to the private folder with a random name, if such a folder was needed.
_PRIVATE_LINK = ".private"


def secrets_path(cluster: str, host: str = LOCAL_HOST) -> Path:
    """Return the file for the secret values of the cluster's tasks on this machine.

    Its name includes a digest of the state folder's path: other state folders may have clusters of this name.
    """
    digest = hashlib.sha256(os.fsencode(state_folder(cluster, host))).hexdigest()[:_DIGEST]
    return _runtime_dir() / f"{cluster}.{digest}.secrets"


def certificate_path(secrets: Path) -> Path:
    """Return the file for the certificate of this host in a private cluster."""
    return secrets.with_suffix(".certificate")


def ssh_control_path(cluster: str, destination: str) -> Path:
    """Return the path of ssh's control socket (ControlPath) for an ssh destination."""
    return _runtime_dir(_SSH_SUFFIX, plain=True) / _socket_name(cluster, destination)


def link_socket_path(cluster: str, code: str) -> Path:
    """Return the path of the socket of a cluster's link process, for the commands that run the same code on hosts."""
    return _runtime_dir(_CODE_SUFFIX) / f"{_socket_name(cluster, _LINK)}.{code[: _CODE_SUFFIX - 1]}"


def link_socket_paths(cluster: str) -> list[Path]:
    """Return the paths of the sockets of a cluster's link processes, for any code."""
    return [*_runtime_dir(_CODE_SUFFIX).glob(f"{_socket_name(cluster, _LINK)}.*")]


def _socket_name(cluster: str, purpose: str) -> str:
    identity = "\0".join((str(state_home()), cluster, purpose))
    return hashlib.sha256(os.fsencode(identity)).hexdigest()[:_DIGEST]


def _runtime_dir(room: int = 0, *, plain: bool = False) -> Path:
    """Return the private folder for secrets and sockets, in $XDG_RUNTIME_DIR or in /tmp; create it if it is missing.

    `room` is the number of bytes that must fit after the path of a socket in it. A `plain` path needs no quoting in
    ssh's options. Raises ClusterError if the folder in $XDG_RUNTIME_DIR is this user's, and others can enter it.
    """
    folder = _xdg_dir(room, plain=plain)
    if folder is not None:
        _refuse_shared(folder)
        # Creating the folder fails, for example, after a logout has removed $XDG_RUNTIME_DIR.
        if _make_private(folder):
            return folder
    return _temporary_dir()


def _xdg_dir(room: int = 0, *, plain: bool = False) -> Path | None:
    """Return the folder in $XDG_RUNTIME_DIR; None if that is not set or unsuitable, see `_runtime_dir`."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", "")) / "tfcluster"
    # A slash and a digest must fit after it.
    fits = len(os.fsencode(folder)) + 1 + _DIGEST + room <= _SOCKET_PATH_LIMIT
    suits = folder.is_absolute() and fits and (not plain or _PLAIN_PATH.fullmatch(str(folder)))
    return folder if suits else None


def _refuse_shared(folder: Path) -> None:
    """Reject a folder of this user that other users can enter: only the user may decide how to repair it."""
    try:
        status = folder.lstat()
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise ClusterError(
            f"{folder}: not a folder that only you can enter (mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"Remove it, or chmod 700 it, or set XDG_RUNTIME_DIR; see `ls -ld {folder}`.",
        )


def _temporary_dir() -> Path:
    folder = Path(settings.TEMPORARY_FOLDER, f"tfcluster-{os.getuid()}")
    return folder if _make_private(folder) else _random_dir()


def _random_dir() -> Path:
    """Return the private folder in /tmp to which a symbolic link in the state home leads; create it if missing.

    Its name is random, because another account may have taken the usual one.
    """
    import tempfile  # rarely needed, and slow to import

    link = state_home() / _PRIVATE_LINK
    try:
        make_private_folder(link.parent)
        root = os.open(link.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # the file system does not support locks
                fcntl.flock(root, fcntl.LOCK_EX)  # two concurrent commands must agree on one folder
            with suppress(OSError):  # the link does not exist yet
                if _is_private(folder := Path(os.readlink(link))):
                    return folder
            link.unlink(missing_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="tfcluster-", dir=settings.TEMPORARY_FOLDER))
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
            f"{error.filename or link.parent}: cannot make a private folder for secrets: {error.strerror}",
            hint="Set XDG_RUNTIME_DIR to a folder that only you can enter.",
        ) from error


def make_again(folder: Path) -> None:
    """Make a runtime directory that may have been deleted; raises PermissionError if others can enter what is there."""
    if not _make_private(folder):
        raise PermissionError(errno.EACCES, "not a folder that only you can enter", str(folder))


def _make_private(folder: Path) -> bool:
    """Create a folder that only this user can enter, if it is missing; return whether it is private now."""
    with suppress(OSError):
        make_private_folder(folder)
    return _is_private(folder)


def _is_private(folder: Path) -> bool:
    """Return whether only this user can enter a folder; others could replace its sockets and read their traffic."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
