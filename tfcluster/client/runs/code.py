"""The code of a script that runs on another host: which folder is sent, and how.

tree = CodeTree.of(CodeFolder.of(script, folder))
tree.send(client, report, show_sending)
request = api.RunRequest(..., code=tree.location)
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tfcluster import settings
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.runs.code_files import IGNORE_FILE, git_work_tree, list_files
from tfcluster.control_characters import escape_to_one_line
from tfcluster.core.code import CodeFile, CodeLocation, digest_of, encode_manifest
from tfcluster.core.text import format_size, pluralize
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.code import CodeWanted, SendCodeRequest

#: Shows that code is sent; the arguments are the host, the bytes that it needs, and how many of them are left.
ShowSending = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CodeFolder:
    """The folder that is sent with a script, before its files are read."""

    root: str
    script: str  # its path in the folder; empty for a module
    start: str  # the path, in it, of the folder in which the script starts; empty for itself
    files: Sequence[tuple[str, os.stat_result]]  # relative paths
    notes: Sequence[str]  # what is not sent, for the user

    @classmethod
    def of(cls, script: str | None, folder: str) -> CodeFolder:
        """Find out what is sent with a script.

        That is the folder that the command was typed in, if the script is in or below it and it belongs to the same git
        work tree, if to any; otherwise the folder of the script, and for a script in a home folder only itself.

        Without a script it is a module, which is looked for in the folder. Both paths are absolute.
        """
        start = os.path.realpath(folder)
        if script is None:
            if _is_shared_folder(start):
                return cls(start, "", "", [], [f"{start} is not sent: move the module to its own folder"])
            return cls(start, "", "", *list_files(start))
        real = os.path.realpath(script)
        root = _find_root(os.path.dirname(real), start)
        if root is None:
            parent, name = os.path.split(real)
            note = (
                f"only {name} is sent, not the rest of {parent}: move it to its own folder to send other files with it"
            )
            return cls(parent, name, "", [(name, os.stat(real))], [note])
        typed = os.path.join(os.path.realpath(os.path.dirname(script)), os.path.basename(script))
        place = typed if _is_below(typed, root) else real
        files, notes = list_files(root)
        path = os.path.relpath(place, root)
        if path not in {name for name, _ in files}:  # patterns for generated or large files may fit the script
            files.append((path, os.lstat(place)))
        inside = start != root and _is_below(start, root)
        return cls(root, path, os.path.relpath(start, root) if inside else "", files, notes)

    @property
    def size(self) -> int:
        """Return the size of the files in bytes."""
        return sum(status.st_size for _, status in self.files if stat.S_ISREG(status.st_mode))

    @property
    def is_large(self) -> bool:
        """Return whether the user should be asked before it is sent."""
        return self.size > settings.CODE_UNASKED_BYTES or len(self.files) > settings.CODE_UNASKED_FILES_MAX

    def describe(self) -> str:
        """Describe the folder: its size, and its largest files."""
        sizes = [(path, status.st_size) for path, status in self.files if stat.S_ISREG(status.st_mode)]
        files = pluralize(len(self.files), "file")
        return escape_to_one_line(f"{self.root}: {files}, {format_size(self.size)}{_largest(sizes)}")


@dataclass(frozen=True)
class CodeTree:
    """The code of a script, as hosts know it; the same tree can be sent to several hosts at once."""

    root: str  # the folder here
    files: Sequence[CodeFile]
    manifest: bytes  # its digest is the id of the tree
    location: CodeLocation  # where the script is in the tree: what the request for a run has

    @classmethod
    def of(cls, folder: CodeFolder) -> CodeTree:
        """Read the files of a folder."""
        try:
            files = [_describe(folder.root, path, status) for path, status in folder.files]
        except OSError as error:
            raise ClusterError(
                f"{error.filename}: cannot be sent: {error.strerror}",
                hint=f"Run it again, or leave the file out: {IGNORE_FILE} names such files as .gitignore does.",
            ) from error
        manifest = encode_manifest(files)
        return cls(folder.root, files, manifest, CodeLocation(digest_of(manifest), folder.script, folder.start))

    def send(self, client: AgentClient, report: Callable[[str, str], None], show_sending: ShowSending) -> None:
        """Send a host what it does not have of the tree.

        Args:
            report: Called with the host and what is sent to it, if anything is.

        Raises:
            ClusterError: A file has changed since it was read, or the host cannot store the tree.
        """
        tree = self.location.tree
        files = {file.digest: file for file in self.files if file.digest is not None}
        response = client.stream(SendCodeRequest(tree, len(self.manifest)))
        try:
            for wanted in response:
                if wanted.digests == (tree,):
                    response.send([self.manifest])
                    continue
                if not files.keys() >= set(wanted.digests):
                    raise ClusterError(f"host {client.transport.host} asks for a file that is not sent to it")
                missing = [files[digest] for digest in wanted.digests]
                size = sum(file.size for file in missing)
                largest = _largest([(file.path, file.size) for file in missing])
                files_of = f"{pluralize(len(missing), 'file')} of {self.root}"
                host = client.transport.host
                report(host, escape_to_one_line(f"{files_of}, {format_size(size)}{largest}"))
                self._send_files(response, missing, partial(show_sending, host, size))
        finally:
            response.close()

    def _send_files(
        self, response: ResponseStream[CodeWanted, Done], files: Sequence[CodeFile], show: Callable[[int], None]
    ) -> None:
        remaining_bytes = sum(file.size for file in files)
        try:
            for file in files:
                for block in _read(self.root, file):
                    show(remaining_bytes)
                    if not response.send([block]):
                        return
                    remaining_bytes -= len(block)
        finally:
            show(0)


def _find_root(folder: str, start: str) -> str | None:
    """Return the folder that is sent with a script; None if only the script is.

    `folder` has the script; `start` is the folder that the command was typed in.
    """
    work_tree = git_work_tree(folder)
    if work_tree is not None and _is_below(start, work_tree):
        common = os.path.commonpath([folder, start])
    else:
        common = start if work_tree is None and _is_below(folder, start) else folder
    return next((root for root in (common, folder) if not _is_shared_folder(root)), None)


def _is_shared_folder(folder: str) -> bool:
    """Return whether a folder is the home folder, one above it, or that of temporary files: it has unrelated files."""
    home = os.path.realpath(os.path.expanduser("~"))
    return _is_below(home, folder) or folder == os.path.realpath(tempfile.gettempdir())


def _is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or leads to something in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _largest(sizes: Sequence[tuple[str, int]]) -> str:
    if len(sizes) < 2:
        return f" ({sizes[0][0]})" if sizes else ""
    largest = sorted(sizes, key=lambda item: -item[1])[: settings.LISTED_EXAMPLES]
    return f"; the largest: {', '.join(f'{path} ({format_size(size)})' for path, size in largest)}"


def _describe(root: str, path: str, status: os.stat_result) -> CodeFile:
    """Read a file for the manifest."""
    full = os.path.join(root, path)
    if stat.S_ISDIR(status.st_mode):
        return CodeFile(path)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(full)
        if os.path.isabs(target) and _is_below(os.path.normpath(target), root):
            target = os.path.relpath(target, os.path.dirname(full))
        return CodeFile(path, link=target)
    digest, size = hashlib.sha256(), 0
    with open(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
        status = os.fstat(file.fileno())
        while block := file.read(settings.RPC_CHUNK_MAX_BYTES):
            digest.update(block)
            size += len(block)
    return CodeFile(path, size, status.st_mtime_ns, bool(status.st_mode & stat.S_IXUSR), digest.hexdigest())


def _read(root: str, file: CodeFile) -> Iterator[bytes]:
    """Yield the content that a file had when the manifest was made, without what was added since.

    A file that has another content now raises a ClusterError.
    """
    digest, rest = hashlib.sha256(), file.size
    try:
        with open(os.path.join(root, file.path), "rb", 0) as source:
            while rest and (block := source.read(min(rest, settings.RPC_CHUNK_MAX_BYTES))):
                digest.update(block)
                rest -= len(block)
                yield block
    except OSError as error:
        raise _changed(file, error.strerror or "") from error
    if digest.hexdigest() != file.digest:
        raise _changed(file, "its content has changed")


def _changed(file: CodeFile, reason: str) -> ClusterError:
    return ClusterError(
        f"{file.path} was changed while it was sent: {reason}",
        hint=f"Run it again. Files that change all the time belong in {IGNORE_FILE}.",
    )
