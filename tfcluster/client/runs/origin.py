"""What a run is started from: the script's content and its git commit, for the record and for `rerun`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from tfcluster import settings
from tfcluster.client.runs.code_files import git_work_tree, run_git
from tfcluster.core.code import digest_of
from tfcluster.core.runs import RunOptions
from tfcluster.errors import ClusterError
from tfcluster.input_file import is_descriptor
from tfcluster.version import __version__


def with_origin(options: RunOptions, upload: BinaryIO | None) -> RunOptions:
    """Return the options of a run with what the run is started from now."""
    digest, commit, is_clean = None, None, None
    if options.traits.is_script and upload is None:
        digest, commit, is_clean = describe_script(options.parameters)
    path = None if upload is None else _path_of(upload.name)
    return replace(options, version=__version__, digest=digest, commit=commit, is_clean=is_clean, upload=path)


def describe_script(parameters: Mapping[str, Any]) -> tuple[str | None, str | None, bool | None]:
    """Return the digest of a script, its commit, and whether the work tree is clean, as far as they are known."""
    path = parameters["path"]
    digest = None
    if path is not None and os.path.isfile(path):
        digest = digest_of(Path(path).read_bytes())
    folder = os.path.realpath(parameters["cwd"]) if path is None else os.path.dirname(os.path.realpath(path))
    if git_work_tree(folder) is None:
        return digest, None, None
    try:
        arguments = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
        status = run_git(folder, *arguments, timeout=settings.GIT_STATUS_SECONDS).decode(errors="replace")
    except ClusterError:  # no git is installed, it takes too long, or the folder is another user's
        return digest, None, None
    first, *rest = status.splitlines()
    commit = first.removeprefix("# branch.oid ")
    return (digest, None, None) if commit == "(initial)" else (digest, commit, all(line[0] == "#" for line in rest))


def _path_of(name: object) -> str:
    """Return the absolute path of an uploaded file, or an empty string if it is none that can be read again."""
    path = os.path.abspath(name) if isinstance(name, str) else ""
    return path if os.path.isfile(path) and not is_descriptor(path) else ""


def describe_changes(run: str, then: RunOptions, now: RunOptions) -> list[str]:
    """Describe what has changed between `then` and `now`, of the script of a run and its work tree."""
    changes = []
    if then.digest != now.digest:
        changes.append(f"{os.path.basename(now.parameters['path'])} has changed since {run}")
    if then.commit != now.commit or (then.commit is not None and not (then.is_clean and now.is_clean)):
        changes.append(f"{run} ran at {then.describe_commit()}; now it is {now.describe_commit()}")
    return changes
