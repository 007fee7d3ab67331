"""Install tfcluster's code in a cache on this host. The bootstrap program executes this file's source by itself.

The cache is a folder that only its owner can enter. A version of the code is in a subfolder that is named by the hash
of its archive and has all files from the moment it is there. Other versions of tfcluster use the same cache and lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import IO
from zipfile import ZipFile

#: The number of most recently used versions of the code that stay, besides those that an agent runs or a journal names.
_VERSIONS_KEPT = 3


def install(archive: ZipFile, name: str, roots: Iterable[str], find: Callable[[], str | None]) -> str:
    """Unpack the code to the first of the folders that is writable, and return its folder there.

    `find` returns the folder if another session has installed the code meanwhile. Raises OSError if no folder is
    writable.
    """
    problems = []
    for root in roots:
        try:
            return _install_in(root, archive, name, find)
        except OSError as problem:
            problems.append(problem)
    raise problems[0]


def _install_in(root: str, archive: ZipFile, name: str, find: Callable[[], str | None]) -> str:
    previous = os.umask(0o077)  # makedirs makes the folders above with the mode of the umask
    try:
        os.makedirs(root, exist_ok=True)
    finally:
        os.umask(previous)
    os.chmod(root, 0o700)  # fails if the folder belongs to another user
    with open(os.path.join(root, "lock"), "w") as lock:
        is_locked = _lock(lock, fcntl.LOCK_EX)
        if found := find():
            return found
        folder = os.path.join(root, name)
        new = tempfile.mkdtemp(prefix=".", dir=root)
        try:
            archive.extractall(new)
            _remove(folder)
            os.rename(new, folder)
        except OSError:
            _remove(new)
            raise
        if is_locked:
            prune(root)
    return folder


def _lock(file: IO[str], kind: int) -> bool:
    """Lock a file until it is closed; return False if it is locked, or the file system does not support locks."""
    try:
        fcntl.flock(file, kind)
    except OSError:
        return False
    return True


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def prune(root: str) -> None:
    """Remove old versions of the code from the cache, and remains of interrupted installations.

    Versions stay that an agent runs, or that a journal names: a link for each journal on this host leads to them. The
    link of a cluster that was taken down leads nowhere.
    """
    entries = list(os.scandir(root))
    links = [entry.path for entry in entries if entry.is_symlink()]
    named = {os.path.realpath(link) for link in links}
    folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    folders.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    recent = [entry for entry in folders if not entry.name.startswith(".")][:_VERSIONS_KEPT]
    for entry in folders:
        with contextlib.suppress(OSError):
            if entry not in recent and os.path.realpath(entry.path) not in named and not _is_used(entry.path):
                _remove(entry.path)
    for link in links:
        if not os.path.exists(link):
            _remove(link)


def _is_used(folder: str) -> bool:
    """Return whether an agent holds the lock of the code in a folder, since `exec` starts processes with it."""
    try:
        with open(os.path.join(folder, "tfcluster", "__init__.py"), "r+") as code:
            return not _lock(code, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
