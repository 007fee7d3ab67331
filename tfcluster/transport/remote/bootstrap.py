"""The bootstrap program of another host's Python: find this version of tfcluster's code in the cache, or request it.

The source of this file is sent in each session, so it imports nothing of tfcluster until the code has been verified.

The cache is a folder that only its owner can access. A version of the code is in a subfolder that is named by its
content hash, which covers the names and contents of all files. The hash is computed again from the files before each
use. Bytecode that Python compiles next to the files is not covered: no other user can enter the folder, and Python
itself checks whether bytecode is up to date.

A dry run, which must change nothing on the host, imports the code from memory and writes no file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import IO, Any

#: The prefix of each line that is a message to the client: a login shell may print other lines.
MESSAGE_PREFIX = "tfcluster> "
#: The number of most recently used versions of the code that stay in the cache, besides those that an agent still runs.
_VERSIONS_KEPT = 3
_COMPILED = "__pycache__"
#: The error message and the hint for a host on which the code cannot be written.
CANNOT_STORE = "cannot keep tfcluster's code"
STORE_HINT = "Free some disk space there, or set `state:` in the spec to a writable folder."


def import_code(session: dict[str, Any]) -> bool:
    """Import the code that the client's first line names and return True, or send the client an error.

    Of that line, see `remote.session.serve`, this module uses `code`, the content hash of the code; `is_dry_run`,
    whether no file may be written; and `state`.
    """
    send_message({"begun": True})
    try:
        if session["is_dry_run"]:
            sys.meta_path.insert(0, MemoryImporter(_receive(session)))
        else:
            _import_from(_find(session) or _store(session, _receive(session)))
    except (OSError, zlib.error, ValueError) as problem:
        send_message({"error": {"message": f"{CANNOT_STORE}: {problem}", "hint": STORE_HINT, "exit_code": 1}})
        return False
    if session["is_dry_run"]:
        _add_user_site()
    return True


def _import_from(folder: str) -> None:
    """Import tfcluster, and thereby all of its modules, from a folder."""
    with contextlib.suppress(OSError):
        os.utime(folder)  # for `_prune`, which keeps the most recently used versions
    sys.path.insert(0, folder)
    import tfcluster.version  # noqa: F401 - the package's path determines where its modules come from

    del sys.path[0]


def _add_user_site() -> None:
    """Add the folder of `pip install --user` to the path: -I leaves it out, but it does not depend on the spec."""
    import site

    # A virtual environment without access to the system's packages has no access to the user's either.
    if sys.flags.no_user_site and sys.base_prefix in site.PREFIXES:
        folder = site.getusersitepackages()
        if os.path.isdir(folder):
            site.addsitedir(folder)


class MemoryImporter:
    """Imports modules from source texts by path, such as `tfcluster/transport/remote/bootstrap.py`."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Find a module; see importlib.abc.MetaPathFinder."""
        base = name.replace(".", "/")
        for file in (f"{base}/__init__.py", f"{base}.py"):
            if file in self._files:
                is_package = file.endswith("/__init__.py")
                loader: Any = self  # has a loader's methods; this module imports as little as possible
                spec = importlib.machinery.ModuleSpec(name, loader, origin=file, is_package=is_package)
                spec.has_location = True  # so that the module has a __file__
                return spec
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let Python create the module; see importlib.abc.Loader."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module's source text; see importlib.abc.Loader."""
        file = module.__file__
        assert file is not None, "find_spec sets has_location"
        exec(compile(self._files[file], file, "exec", dont_inherit=True), vars(module))


def send_message(message: dict[str, Any]) -> None:
    """Send one message to the client, as a marked line on standard output."""
    sys.stdout.write(f"\n{MESSAGE_PREFIX}{json.dumps(message)}\n")
    sys.stdout.flush()


def pack(files: dict[str, str]) -> bytes:
    """Serialise files by path, for the content hash."""
    return json.dumps(files, sort_keys=True).encode()


def content_hash(packed: bytes) -> str:
    """Return the content hash of packed files."""
    return hashlib.sha256(packed).hexdigest()


def _find(session: dict[str, Any]) -> str | None:
    for root in cache_folders(session):
        folder = os.path.join(root, session["code"])
        if _is_intact(folder):
            return folder
    return None


def cache_folders(session: dict[str, Any]) -> Iterator[str]:
    """Yield the candidate folders for the cache, in order of preference."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    yield os.path.join(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache"), "tfcluster", "code")
    if session["state"]:  # the spec has `state:` for hosts whose home folder is not writable
        yield os.path.join(os.path.abspath(os.path.expanduser(session["state"])), ".code")


def _receive(session: dict[str, Any]) -> dict[str, str]:
    """Request the code from the client, and return the source texts by path; a wrong hash raises a ValueError."""
    send_message({"need": "code"})
    packed = zlib.decompress(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
    if content_hash(packed) != session["code"]:
        raise ValueError("the code that arrived has another hash than the one that was named")
    files: dict[str, str] = json.loads(packed)
    return files


def _store(session: dict[str, Any], files: dict[str, str]) -> str:
    """Write the code to the first candidate folder that is writable, and return its folder, or raise an OSError."""
    problem = None
    for root in cache_folders(session):
        try:
            return _install(root, session["code"], files)
        except OSError as error:
            problem = problem or error
    assert problem is not None, "there is at least one candidate"
    raise problem


def _install(root: str, name: str, files: dict[str, str]) -> str:
    import tempfile  # imported here, as only the first session on a host needs it

    previous = os.umask(0o077)  # makedirs makes the folders above with the mode of the umask
    try:
        os.makedirs(root, exist_ok=True)
    finally:
        os.umask(previous)
    os.chmod(root, 0o700)  # fails if the folder belongs to another user
    folder = os.path.join(root, name)
    with open(os.path.join(root, "lock"), "w") as lock:
        locked = _lock(lock, fcntl.LOCK_EX)
        if not _is_intact(folder):  # another session may have installed the code meanwhile
            _remove(folder)
            new = tempfile.mkdtemp(prefix=".", dir=root)
            try:
                _write(new, files)
                os.rename(new, folder)
            except OSError:
                _remove(new)
                raise
        if locked:
            _prune(root)
    return folder


def _lock(file: IO[str], kind: int) -> bool:
    """Lock a file until it is closed; return False if it is locked, or the file system does not support locks."""
    try:
        fcntl.flock(file, kind)
    except OSError:
        return False
    return True


def _write(folder: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "x", encoding="utf-8", newline="") as file:
            file.write(text)


def _is_intact(folder: str) -> bool:
    """Return whether only this user can access a folder, and its files have the hash that is the folder's name."""
    try:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return False
        return content_hash(pack(dict(_files(folder)))) == os.path.basename(folder)
    except (OSError, ValueError):
        return False


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file in a folder that Python could import.

    Symbolic links to folders are included: tfcluster does not create any, so a link has to change the hash.
    """
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != _COMPILED]
        for name in (*files, *(each for each in folders if os.path.islink(os.path.join(parent, each)))):
            path = os.path.join(parent, name)
            with open(path, encoding="utf-8", newline="") as file:
                yield os.path.relpath(path, folder), file.read()


def _prune(root: str) -> None:
    """Remove old versions of the code from the cache, and remains of interrupted installations.

    Versions stay that an agent runs, or that a journal names: a link for each journal on this host leads to them. The
    link of a cluster that was taken down leads nowhere.
    """
    links = [entry.path for entry in os.scandir(root) if entry.is_symlink()]
    for link in links:
        if not os.path.exists(link):
            _remove(link)
    named = {os.path.realpath(link) for link in links}
    entries = [entry for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    versions = [entry.path for entry in entries if not entry.name.startswith(".")]
    for path in (*(entry.path for entry in entries if entry.name.startswith(".")), *versions[_VERSIONS_KEPT:]):
        with contextlib.suppress(OSError):
            if os.path.realpath(path) not in named and not _is_used(path):
                _remove(path)


def _is_used(folder: str) -> bool:
    """Return whether an agent holds the lock of the code in a folder, since `exec` starts processes with it."""
    try:
        with open(os.path.join(folder, "tfcluster", "__init__.py"), "r+") as code:
            return not _lock(code, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
