"""What the Python of another host runs first: it checks that it has this very code of tfcluster's, or asks for it.

The text of this file is sent on each session, so it imports nothing of tfcluster's before that is checked.

The code is kept in an owner-only folder under the name of its hash, which is that of all its files' names and texts. It
is taken from those files again before each use; what Python compiles beside them, in a folder that nobody else can
enter, is left to Python's own check.

An examination that must change nothing here (`keep` is false) imports the code from memory, and no file is written.
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

#: How each line begins that is said to the other side: a login shell may print lines of its own.
MARK = "tfcluster> "
#: So many versions of the code are kept, the latest used ones, besides those that an agent still runs.
_KEPT = 3
_COMPILED = "__pycache__"
#: What is said where the code cannot be kept, and what to type then.
CANNOT_KEEP = "cannot keep tfcluster's code"
KEEP_HINT = "Make room there, or name a folder that can be written to by `state:` in the spec."


def main(said: dict[str, Any]) -> None:
    """Do what the other side said in its first line, with the code that it named."""
    tell({"begun": True})
    try:
        if said["keep"]:
            _import_from(_find(said) or _keep(said, _receive(said)))
        else:
            sys.meta_path.insert(0, MemoryImporter(_receive(said)))
    except (OSError, zlib.error, ValueError) as problem:
        tell({"error": {"message": f"{CANNOT_KEEP}: {problem}", "hint": KEEP_HINT, "exit_code": 1}})
        return
    if said["keep"]:
        from tfcluster.transport.stdio_proxy import serve
    else:
        _add_user_site()
        from tfcluster.transport.dry_run_server import serve
    serve(said)


def _import_from(folder: str) -> None:
    """Have all modules of tfcluster's be imported from a folder."""
    with contextlib.suppress(OSError):
        os.utime(folder)  # the latest used ones are kept
    sys.path.insert(0, folder)
    import tfcluster  # noqa: F401 - with it all its modules come from there, and no others do

    del sys.path[0]


def _add_user_site() -> None:
    """Add what this user installed with `pip install --user`, which -I leaves out: no spec has a say in that."""
    import site

    # A virtual environment that does not see the system's packages does not see the user's either.
    if sys.flags.no_user_site and sys.base_prefix in site.PREFIXES:
        folder = site.getusersitepackages()
        if os.path.isdir(folder):
            site.addsitedir(folder)


class MemoryImporter:
    """Imports modules from texts in memory.

    Args:
        files: The texts by their paths, as `tfcluster/transport/boot.py`.
    """

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Find a module; see importlib.abc.MetaPathFinder."""
        base = name.replace(".", "/")
        for file in (f"{base}/__init__.py", f"{base}.py"):
            if file in self._files:
                is_package = file.endswith("/__init__.py")
                loader: Any = self  # it has the methods of a loader, and boot.py imports as little as possible
                found = importlib.machinery.ModuleSpec(name, loader, origin=file, is_package=is_package)
                found.has_location = True  # so that the module has a __file__
                return found
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to Python to make the module; see importlib.abc.Loader."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's text; see importlib.abc.Loader."""
        file = module.__file__
        assert file is not None, "find_spec sees to it"
        exec(compile(self._files[file], file, "exec", dont_inherit=True), vars(module))


def tell(message: dict[str, Any]) -> None:
    """Say one line to the other side."""
    sys.stdout.write(f"\n{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def pack(files: dict[str, str]) -> bytes:
    """Files, by their paths, as the bytes whose hash names them."""
    return json.dumps(files, sort_keys=True).encode()


def name_of(packed: bytes) -> str:
    """The name of packed files."""
    return hashlib.sha256(packed).hexdigest()


def _find(said: dict[str, Any]) -> str | None:
    for root in roots(said):
        folder = os.path.join(root, said["code"])
        if _holds(folder):
            return folder
    return None


def roots(said: dict[str, Any]) -> Iterator[str]:
    """The folders where code may be kept, the best first."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    yield os.path.join(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache"), "tfcluster", "code")
    if said["state"]:  # it is there for hosts whose home cannot be written
        yield os.path.join(os.path.abspath(os.path.expanduser(said["state"])), ".code")


def _receive(said: dict[str, Any]) -> dict[str, str]:
    """Ask for the code; returns the texts of its files by their paths.

    Raises:
        ValueError: What arrived is not it.
    """
    tell({"need": "code"})
    packed = zlib.decompress(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
    if name_of(packed) != said["code"]:
        raise ValueError("what arrived is not what was named")
    files: dict[str, str] = json.loads(packed)
    return files


def _keep(said: dict[str, Any], files: dict[str, str]) -> str:
    """Write the code to the first folder that can be written to; returns its folder.

    Raises:
        OSError: There is no place for it.
    """
    problem = None
    for root in roots(said):
        try:
            return _install(root, said["code"], files)
        except OSError as error:
            problem = problem or error
    assert problem is not None, "there is at least one place"
    raise problem


def _install(root: str, name: str, files: dict[str, str]) -> str:
    import tempfile  # what is done once need not slow every session down

    os.makedirs(root, mode=0o700, exist_ok=True)
    os.chmod(root, 0o700)  # fails where it is somebody else's
    folder = os.path.join(root, name)
    with open(os.path.join(root, "lock"), "w") as lock:
        locked = _lock(lock, fcntl.LOCK_EX)
        if not _holds(folder):  # another first contact may have been faster
            _remove(folder)
            made = tempfile.mkdtemp(prefix=".", dir=root)
            try:
                _write(made, files)
                os.rename(made, folder)
            except OSError:
                _remove(made)
                raise
        if locked:
            _tidy(root)
    return folder


def _lock(file: IO[str], kind: int) -> bool:
    """Lock a file, as long as it is open; whether that is possible where it is."""
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


def _holds(folder: str) -> bool:
    """Whether a folder is nobody else's and holds the very files whose hash names it."""
    try:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return False
        return name_of(pack(dict(_files(folder)))) == os.path.basename(folder)
    except (OSError, ValueError):
        return False


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """The path and text of each file that Python could import; a link is none of ours, and so spoils the hash."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != _COMPILED]
        for name in (*files, *(each for each in folders if os.path.islink(os.path.join(parent, each)))):
            path = os.path.join(parent, name)
            with open(path, encoding="utf-8", newline="") as file:
                yield os.path.relpath(path, folder), file.read()


def _tidy(root: str) -> None:
    """Remove old versions of the code that no agent runs, and what installing that was killed left."""
    found = [entry for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    found.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    versions = [entry.path for entry in found if not entry.name.startswith(".")]
    for path in (*(entry.path for entry in found if entry.name.startswith(".")), *versions[_KEPT:]):
        with contextlib.suppress(OSError):
            if not _is_used(path):
                _remove(path)


def _is_used(folder: str) -> bool:
    """Whether an agent holds the lock of the code in a folder: it may import more of it."""
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
