"""The code of a script that runs on another host: which folder is sent, which of its files, and how.

tree = CodeTree.of(CodeFolder.of(script, folder))
tree.send(client, report, show_sending)
request = api.RunRequest(..., code=tree.location)
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster import settings
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.control_characters import escape_to_one_line
from tfcluster.core.code import CodeFile, CodeLocation, digest_of, encode_manifest
from tfcluster.core.text import format_size, pluralize
from tfcluster.errors import ClusterError, usage_error
from tfcluster.os.files import read_file
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.files import CodeWanted, SendCodeRequest

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

#: Shows that code is sent; the arguments are the host, the bytes that it needs, and how many of them are left.
ShowSending = Callable[[str, int, int], None]
IGNORE_FILE = ".tfclusterignore"
# Folders that are never code: the history, compiled modules.
_NEVER = {".git", "__pycache__"}
# Python's interpreter and packages in a virtual environment work at its place only; this file marks one.
_ENVIRONMENT_MARK = "pyvenv.cfg"
# By these git names a repository to the programs that it starts, as hooks, whatever folder they ask about.
_REPOSITORY = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"}
# The configuration of a repository can name a command, which git would execute to list files: of one that was fetched,
# for example, a host has decided what it is.
_NO_COMMANDS = ("-c", "core.fsmonitor=false")
# In lines of .tfclusterignore: the end of a pattern for folders only; a line without a pattern.
_SLASH_AT_END = re.compile(r"/\s*$")
_NO_PATTERN = re.compile(r"#.*|!?/*\s*")
_LINE_BREAK = "\0"  # in place of one in a path: pathspec's expressions end there, and no pattern has this character


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
        if os.path.isdir(script):
            script = os.path.join(script, "__main__.py")
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
        while block := file.read(settings.RPC_BLOCK_MAX_BYTES):
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
            while rest and (block := source.read(min(rest, settings.RPC_BLOCK_MAX_BYTES))):
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


def git_work_tree(folder: str) -> str | None:
    """Return the top folder of the git work tree that a folder is in; None if there is none."""
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def run_git(folder: str, *arguments: str, timeout: float) -> bytes:
    """Return the output of git in a folder.

    The folder decides on the repository. The timeout is in seconds. If git is missing, fails, or takes too long, a
    ClusterError is raised.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _REPOSITORY}
    try:
        result = subprocess.run(
            ["git", "-C", folder, *_NO_COMMANDS, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=timeout,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"git cannot be asked about {folder}: {error}") from error
    if result.returncode:
        reason = (result.stderr.decode(errors="replace").splitlines() or ["no reason given"])[0]
        raise ClusterError(f"git cannot be asked about {folder}: {reason}")
    return result.stdout


def list_files(root: str) -> tuple[list[tuple[str, os.stat_result]], list[str]]:
    """List the files of a folder that are code.

    In a git work tree these are the files that git tracks and those that it does not know and does not ignore;
    elsewhere, and in a folder that git ignores, all. In both, what a .tfclusterignore names is left out.

    The result has the relative path and status of each file, symbolic link and empty folder, and notes about what is
    left out.
    """
    notes: list[str] = []
    paths: list[str] = []
    if git_work_tree(root) is not None:
        try:
            paths = list(_list_by_git(root))
        except ClusterError as error:
            notes.append(f"{error.message}: its .gitignore is not applied")
    filter_ = _Filter(root)
    files, special = [], []
    for path in filter(filter_.keeps, paths) if paths else _walk(root, filter_, notes):
        try:
            status = os.lstat(os.path.join(root, path))
        except OSError:  # git tracks it, and it has been deleted
            continue
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            special.append(path)
        elif stat.S_ISREG(status.st_mode) and not os.access(os.path.join(root, path), os.R_OK):
            notes.append(f"{path} cannot be read and is left out")
        else:
            files.append((path, status))
        if len(files) > settings.CODE_FILES_MAX:
            raise ClusterError(
                f"{root} has more than {settings.CODE_FILES_MAX:,} files",
                hint=f"Leave files out: {IGNORE_FILE} names them as .gitignore does.",
            )
    if special:
        notes.append(
            f"left out, because they are neither files nor folders: {', '.join(special[: settings.LISTED_NAMES])}"
        )
    return files, notes


def _list_by_git(root: str) -> Iterator[str]:
    """Return the files below a folder of a work tree, with those of submodules and of other work trees in it."""
    listed = run_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", timeout=settings.GIT_SECONDS)
    paths = {os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path}

    for path in sorted(paths):
        folder = os.path.join(root, path)
        if os.path.isdir(folder) and not os.path.islink(folder):
            if os.path.lexists(os.path.join(folder, ".git")):
                yield from (f"{path}/{inner}" for inner in _list_by_git(folder))
        else:
            yield path


def _walk(root: str, filter_: _Filter, notes: list[str]) -> Iterator[str]:
    """Yield the files, the links and the empty folders below a folder."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except PermissionError:
            notes.append(f"{folder or root} cannot be read and is left out")
            continue
        if folder and not names:
            yield folder
        for name, is_folder in names:
            path = f"{folder}/{name}" if folder else name
            if not is_folder:
                if filter_.keeps(path):
                    yield path
            elif filter_.keeps_folder(path):
                pending.append(path)


class _Filter:
    """Decides by .tfclusterignore, in the folder and in those below it, and by what is never code."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._patterns: dict[str, _Patterns] = {}
        self._folders: dict[str, bool] = {"": True}

    def keeps(self, path: str) -> bool:
        """Return whether a file belongs to the code."""
        folder, _, name = path.rpartition("/")
        return name not in _NEVER and self.keeps_folder(folder) and not self._patterns_in(folder).ignore(path)

    def keeps_folder(self, folder: str) -> bool:
        """Return whether files in a folder may belong to the code."""
        if folder not in self._folders:
            parent, _, name = folder.rpartition("/")
            is_environment = os.path.lexists(os.path.join(self._root, folder, _ENVIRONMENT_MARK))
            self._folders[folder] = (
                name not in _NEVER
                and self.keeps_folder(parent)
                and not is_environment
                and not self._patterns_in(parent).ignore(folder, is_folder=True)
            )
        return self._folders[folder]

    def _patterns_in(self, folder: str) -> _Patterns:
        """Return the patterns for what is in a folder: those of its own file after those of the folders above it."""
        if folder not in self._patterns:
            above = self._patterns_in(folder.rpartition("/")[0]) if folder else _Patterns([])
            own = [_from_top(line, folder) for line in _read_patterns(Path(self._root, folder, IGNORE_FILE))]
            self._patterns[folder] = _Patterns([*above.lines, *own]) if own else above
        return self._patterns[folder]


class _Patterns:
    """Lines of .tfclusterignore, for paths from the top folder.

    pathspec knows files only, and lets the last pattern for a folder decide about what is in it, unless one matches the
    whole path. Folders are looked up like files, without the slash that some patterns end with: so it decides as git.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        from pathspec import GitIgnoreSpec  # only if code is sent

        self.lines = lines
        of_files = [line for line in lines if line.startswith("!") or not _SLASH_AT_END.search(line)]
        self._of_files = GitIgnoreSpec(map(_compile, of_files), backend="simple")
        self._of_folders = GitIgnoreSpec([_compile(_SLASH_AT_END.sub("", line)) for line in lines], backend="simple")

    def ignore(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether a file is left out, or a folder with all that is in it."""
        return (self._of_folders if is_folder else self._of_files).match_file(path.replace("\n", _LINE_BREAK))


def _compile(line: str) -> GitIgnoreSpecPattern:
    """Compile a pattern; one that is invalid matches nothing, as with git."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of [[], which may mean another set one day
        try:
            return GitIgnoreSpecPattern(line)
        except (ValueError, re.error):
            return GitIgnoreSpecPattern(None)


def _read_patterns(path: Path) -> list[str]:
    """Return the patterns in a .tfclusterignore."""
    try:
        text = read_file(path, settings.SPEC_MAX_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError:
        return []
    except ValueError as error:
        raise usage_error(f"{path}: {error}") from error
    lines = {number: line for number, line in enumerate(text.split("\n"), 1) if not _NO_PATTERN.fullmatch(line)}
    for number, line in lines.items():
        if max(name.count("*") for name in line.split("/")) > settings.IGNORE_STARS_MAX:
            problem = f"a name with more than {settings.IGNORE_STARS_MAX} stars would take too long to match"
            raise usage_error(f"{path}:{number}: {problem}", "Shorten the pattern, or write two.")
    return [*lines.values()]


def _from_top(line: str, folder: str) -> str:
    """Return a pattern of a folder's own file as one for paths from the top folder."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    if not folder:
        return line
    negation, pattern = ("!", line[1:]) if line.startswith("!") else ("", line)
    anywhere = "" if "/" in _SLASH_AT_END.sub("", pattern) else "**/"
    folder = GitIgnoreSpecPattern.escape(folder.replace("\n", _LINE_BREAK))
    return f"{negation}/{folder}/{anywhere}{pattern.removeprefix('/')}"
