"""The bootstrap program of another host's Python: find this version of tfcluster's code in the cache, or request it.

The source of this file is sent in each session, so it is short; `install`, which is rarely needed, arrives with the
code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zipfile import ZipFile

#: The prefix of each line that is a message to the client: a login shell may print other lines.
MESSAGE_PREFIX = "tfcluster> "
#: The error message and the hint for a host on which the code cannot be written.
CANNOT_STORE = "cannot keep tfcluster's code"
STORE_HINT = "Free some disk space there, or set `state:` in the spec to a writable folder."


def main(session: dict[str, Any]) -> None:
    """Import the code that the client's first line names and serve the session, or send the client an error.

    Of that line, see `remote.session.serve`, this module uses `code`, the hash of the archive with the code;
    `code_bytes`, the size of the files in it; and `state`.
    """
    send_message({"begun": True})
    try:
        _import_from(find_code(session) or _install(session))
    except (OSError, ValueError) as problem:
        send_message({"error": {"message": f"{CANNOT_STORE}: {problem}", "hint": STORE_HINT, "exit_code": 1}})
    else:
        importlib.import_module("tfcluster.transport.remote.session").serve(session)


def send_message(message: dict[str, Any]) -> None:
    """Send one message to the client, as a marked line on standard output."""
    sys.stdout.write(f"\n{MESSAGE_PREFIX}{json.dumps(message)}\n")
    sys.stdout.flush()


def cache_folders(session: dict[str, Any]) -> Iterator[str]:
    """Yield the candidate folders for the cache, in order of preference."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    cache = cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")
    if os.path.isabs(cache):
        yield os.path.join(cache, "tfcluster", "code")
    elif not session["state"]:
        raise OSError("the account has no home folder: HOME is not set, and no entry in /etc/passwd names one")
    if session["state"]:  # the spec has `state:` for hosts whose home folder is not writable
        yield os.path.join(os.path.abspath(os.path.expanduser(session["state"])), ".code")


def find_code(session: dict[str, Any]) -> str | None:
    """Return the folder of the code; None if there is none that only this user can enter and that is complete.

    The size shows files that are missing or cut off: a cleaner of old files may have removed some, or the machine may
    have crashed. The files are not read: no one else can have changed them.
    """
    for root in cache_folders(session):
        folder = os.path.join(root, session["code"])
        with contextlib.suppress(OSError):
            status = os.lstat(folder)
            is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
            if is_private and _size(folder) == session["code_bytes"]:
                with contextlib.suppress(OSError):
                    os.utime(folder)  # the versions that were used last are kept
                return folder
    return None


def _size(folder: str) -> int:
    """Return the bytes of all modules in a folder."""
    paths = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(os.path.getsize(path) for path in paths if path.endswith(".py"))


def _import_from(folder: str) -> None:
    """Import tfcluster from a folder, and thereby later all of its modules."""
    sys.path.insert(0, folder)
    importlib.import_module("tfcluster")
    del sys.path[0]


def _install(session: dict[str, Any]) -> str:
    """Request the code, have it installed by the program that it contains, and return its folder."""
    archive = _receive(session)
    installer: dict[str, Any] = {}
    exec(archive.read("tfcluster/transport/remote/install.py"), installer)
    folder: str = installer["install"](archive, session["code"], cache_folders(session), lambda: find_code(session))
    return folder


def _receive(session: dict[str, Any]) -> ZipFile:
    """Request the archive with the code; raise ValueError if something else arrives."""
    import hashlib
    import io
    import zipfile
    import zlib

    send_message({"need": "code"})
    try:
        packed = zlib.decompress(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
    except zlib.error as problem:
        raise ValueError(problem) from problem
    if hashlib.sha256(packed).hexdigest() != session["code"]:
        raise ValueError("the code that arrived has another hash than the one that was named")
    return zipfile.ZipFile(io.BytesIO(packed))
