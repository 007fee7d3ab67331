"""The tree of code that a run gets of its own: it is made of the host's cache, and cleared when the run has ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path, PurePath

from tfcluster.core.code import CodeFile, CodeLocation, decode_manifest, is_digest, is_inside
from tfcluster.errors import ClusterError
from tfcluster.os.files import write_file
from tfcluster.processes.runs.run_plan import RunPlan

#: The folder of the tree in a run's folder.
CODE = "code"
_MANIFEST = "code.json"
_COMPILED = "__pycache__"


def enter_tree(plan: RunPlan, cache: Path) -> RunPlan:
    """Make the tree of a run whose script has been sent to this host, and return the run with its script there.

    The files are copies: what the script writes beside itself changes neither the cache nor other runs.
    """
    code = plan.code
    if code is None:
        return plan
    tree = plan.folder / CODE
    if not is_digest(code.tree):
        raise ClusterError("a run arrived without the id of its code")
    try:
        manifest = (cache / code.tree).read_bytes()
        clear_tree(plan)  # of an earlier attempt
        write_file(plan.folder / _MANIFEST, manifest)
        tree.mkdir(mode=0o700, exist_ok=True)  # what the script has made there stays
        _make_files(decode_manifest(manifest), cache, tree)
    except OSError as error:
        raise ClusterError(
            f"{tree}: cannot make the folder of the script: {error.strerror}",
            hint="Run it again: its code is sent again if the host has lost it.",
        ) from error
    parameters = plan.options.parameters
    return plan.with_parameters({**parameters, **_locate(tree, code, str(parameters["argument"]))})


def _make_files(files: list[CodeFile], cache: Path, tree: Path) -> None:
    made = {""}
    for file in files:
        folder = file.path if file.digest is None and file.link is None else os.path.dirname(file.path)
        if folder not in made:
            os.makedirs(tree / folder, exist_ok=True)
            made.add(folder)
        path = tree / file.path
        if file.link is not None:
            os.symlink(file.link, path)
        elif file.digest is not None:
            shutil.copyfile(cache / file.digest, path)
            os.chmod(path, 0o700 if file.is_executable else 0o600)
            os.utime(path, ns=(file.modified_ns, file.modified_ns))


def _locate(tree: Path, code: CodeLocation, argument: str) -> dict[str, str]:
    """Return the parameters that say where the script is: as python would, given the same command line in the tree."""
    if not all(path == "" or is_inside(path) for path in (code.script, code.folder)):
        raise ClusterError("a script arrived without its place in the code")
    folder = os.path.join(tree, code.folder) if code.folder else str(tree)
    if not code.script:
        return {"cwd": folder}
    path = os.path.join(tree, code.script)
    typed = os.path.join(folder, argument)
    if not os.path.isabs(argument) and os.path.exists(typed) and os.path.samefile(typed, path):
        return {"path": typed, "argument": argument, "cwd": folder}
    return {"path": path, "argument": path, "cwd": folder}


def clear_tree(plan: RunPlan) -> str:
    """Remove from the tree of a run that has ended what was sent, and leave what the script has made or changed.

    Return what to tell the user if something is left, else an empty string.
    """
    tree = plan.folder / CODE
    if plan.code is None or not tree.exists():
        return ""
    try:
        if not tree.is_symlink():
            _remove_files(tree, plan.folder / _MANIFEST)
    except (OSError, ClusterError) as problem:
        return f"tfcluster: {tree} on {plan.host} cannot be cleared: {problem}"
    warning = f"tfcluster: files that the script wrote beside itself stay on {plan.host}, in {tree}"
    return warning if tree.exists() else ""


def _is_below_link(tree: Path, path: str) -> bool:
    """Return whether the script has replaced a folder by a link: what is below it is not what was sent."""
    return any((tree / parent).is_symlink() for parent in PurePath(path).parents)


def _is_unchanged(path: Path, file: CodeFile) -> bool:
    """Return whether a file or link is there as it was sent."""
    if file.link is not None:
        return os.readlink(path) == file.link
    status = os.lstat(path)
    is_same = (status.st_size, status.st_mtime_ns) == (file.size, file.modified_ns)
    return file.digest is not None and stat.S_ISREG(status.st_mode) and is_same


def _remove_files(tree: Path, manifest: Path) -> None:
    """Remove the files of a manifest that are unchanged, compiled modules, and folders that are empty then."""
    for file in decode_manifest(manifest.read_bytes()):
        path = tree / file.path
        with contextlib.suppress(OSError):  # the script has removed it, or made something else of it or its folder
            if not _is_below_link(tree, file.path) and _is_unchanged(path, file):
                path.unlink()
    manifest.unlink()
    for folder, _, _ in os.walk(tree, topdown=False):
        if os.path.basename(folder) == _COMPILED:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(folder)
