"""Advise the user on a package that a script cannot import: which Python lacks it, and how it gets there."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from tfcluster.processes.runs.interpreters import can_choose
from tfcluster.processes.runs.run_plan import RunPlan

# The files beside a script that list the packages that it needs.
_LISTS = ("requirements.txt", "pyproject.toml")


def advise_on_import(plan: RunPlan, folder: Path, error: BaseException) -> str:
    """Return what to do about the exception that has ended a script; nothing unless a package was not found.

    `folder` is that of the script.
    """
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    package = name.partition(".")[0] if isinstance(name, str) else ""
    if not package or _is_installed(package):  # then only a module of the package is not there
        return ""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    listed = next((folder / name for name in _LISTS if (folder / name).is_file()), None)
    if plan.caller is None:
        found = f", such as those in {listed.name} beside the script" if listed is not None else ""
        return (
            f"{sys.executable} on host {plan.host} does not have {package}. To install packages there{found}, "
            f'add `setup: ["{pip} PACKAGE"]` to the host in the spec, and type `tfcluster up`. '
            "A module of your own must be in the folder that is sent."
        )
    choice = ", or choose another Python with `--python PATH`" if can_choose(plan) else ""
    what = "PACKAGE" if listed is None else _describe_list(os.path.relpath(listed, plan.options.parameters["cwd"]))
    return f"{sys.executable} does not have {package}. Install it with `{pip} {what}`{choice}."


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return True
    try:
        return find_spec(package) is not None
    except Exception:  # of a finder that the environment has added
        return False


def _describe_list(path: str) -> str:
    """Return the words with which pip installs what a file lists."""
    if path.endswith(".txt"):
        return f"-r {shlex.quote(path)}"
    return shlex.quote(os.path.join(".", os.path.dirname(path)))
