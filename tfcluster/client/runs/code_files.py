"""The files of a folder that are code: what git or .tfclusterignore leaves."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

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
            notes.append(f"{error.message}: its .gitignore does not count")
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
        notes.append(f"left out, as neither files nor folders: {', '.join(special[: settings.LISTED_NAMES])}")
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
        self._patterns: dict[str, GitIgnoreSpec | None] = {}
        self._folders: dict[str, bool] = {"": True}

    def keeps(self, path: str) -> bool:
        """Return whether a file belongs to the code."""
        folder, _, name = path.rpartition("/")
        return name not in _NEVER and self.keeps_folder(folder) and not self._is_ignored(path)

    def keeps_folder(self, folder: str) -> bool:
        """Return whether files in a folder may belong to the code."""
        if folder not in self._folders:
            parent, _, name = folder.rpartition("/")
            is_environment = os.path.lexists(os.path.join(self._root, folder, _ENVIRONMENT_MARK))
            self._folders[folder] = (
                name not in _NEVER
                and self.keeps_folder(parent)
                and not is_environment
                and not self._is_ignored(f"{folder}/")
            )
        return self._folders[folder]

    def _is_ignored(self, path: str) -> bool:
        """Return what the nearest .tfclusterignore that has a pattern for a path says."""
        folder = path.rstrip("/").rpartition("/")[0]
        while True:
            spec = self._read(folder)
            if spec is not None:
                decision = spec.check_file(path[len(folder) + 1 :] if folder else path).include
                if decision is not None:
                    return bool(decision)
            if not folder:
                return False
            folder = folder.rpartition("/")[0]

    def _read(self, folder: str) -> GitIgnoreSpec | None:
        """Return the patterns of a folder's own .tfclusterignore; None if it has none."""
        if folder not in self._patterns:
            self._patterns[folder] = None
            try:
                with open(os.path.join(self._root, folder, IGNORE_FILE), encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
            except OSError:
                return None
            from pathspec import GitIgnoreSpec  # slow to import, and few folders have such a file

            try:
                self._patterns[folder] = GitIgnoreSpec.from_lines(lines)
            except ValueError as error:
                place = os.path.join(self._root, folder, IGNORE_FILE)
                raise ClusterError(f"{place}: {error}", exit_code=ExitCode.USAGE) from error
        return self._patterns[folder]
