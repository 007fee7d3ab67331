"""The code of a run that is sent to another host: its files, and the path of the script among them.

A tree is described by a manifest, a JSON document whose SHA-256 digest is the id of the tree. Hosts keep the contents
of files, and the manifests, under their digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.records import record_class

_DIGEST = re.compile(r"[0-9a-f]{64}")


@record_class(frozen=True)
class CodeFile:
    """A file, symbolic link or empty folder of a tree."""

    path: str  # bytes that are not UTF-8 are escaped, as `os.fsdecode` does
    size: int = 0  # in bytes; 0 if it is not a file
    modified_ns: int = 0  # in Unix nanoseconds; 0 if it is not a file
    is_executable: bool = False  # whether its owner may execute the file
    digest: str | None = None  # the SHA-256 digest in hexadecimal digits; None if it is not a file
    link: str | None = None  # the target of a symbolic link; None if it is not one


@record_class(frozen=True)
class CodeLocation:
    """A script in a tree that its host has."""

    tree: str
    script: str  # the path in the tree; empty for a module
    folder: str  # where the script starts, as a path in the tree; empty for the tree's own


def encode_manifest(files: list[CodeFile]) -> bytes:
    """Return the manifest of a tree."""
    rows = [
        [file.path, file.size, file.modified_ns, file.is_executable, file.digest, file.link]
        for file in sorted(files, key=lambda file: file.path)
    ]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_manifest(data: bytes) -> list[CodeFile]:
    """Return the files in a manifest, or raise a ClusterError if it is none, or a path in it leaves the tree."""
    try:
        files = [_decode_file(*row) for row in json.loads(data)]
    except (ValueError, TypeError, RecursionError) as error:
        raise ClusterError(f"a damaged list of files arrived: {error}") from error
    if len({file.path for file in files}) < len(files):
        raise ClusterError("a list of files arrived that names a file twice")
    return files


def _decode_file(path: Any, size: Any, modified_ns: Any, is_executable: Any, digest: Any, link: Any) -> CodeFile:
    if not isinstance(path, str) or not is_inside(path):
        raise ValueError(f"path {path!r:.80} leaves the folder")
    if not isinstance(size, int) or size < 0 or not isinstance(modified_ns, int):
        raise ValueError(f"the size of {path!r:.80}")
    if digest is not None and not is_digest(digest):
        raise ValueError(f"the digest of {path!r:.80}")
    if link is not None and (not isinstance(link, str) or not link or "\0" in link):
        raise ValueError(f"the target of {path!r:.80}")
    return CodeFile(path, size, modified_ns, bool(is_executable), digest, link)


def is_inside(path: str) -> bool:
    """Return whether a path is relative and stays in the folder that it starts from."""
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def is_digest(value: object) -> bool:
    """Return whether a value is a SHA-256 digest in hexadecimal digits."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def digest_of(data: bytes) -> str:
    """Return the SHA-256 digest of data in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
