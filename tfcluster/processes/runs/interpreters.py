"""Choose the Python that runs a script: the cluster's own, that of the active environment, or one that the user names.

The environment is that of the command, which is on this machine: it is active if its shell says so, in $VIRTUAL_ENV or
$CONDA_PREFIX. Only a Python with the cluster's version of TensorFlow can replace the cluster's.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

from tfcluster import boot, settings
from tfcluster.errors import usage_error
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.tf_install import OLDEST_PYTHON, tensorflow_version

# Of the members of a launch and the trials of a sweep, the first one in the first attempt has the note.
_NUMBERS = ("TFCLUSTER_RANK", "TFCLUSTER_ATTEMPT", "TFCLUSTER_TRIAL")
# The name of conda's first environment, which is active in each shell of many users without their doing.
_CONDA_BASE = "base"
_USED = "the script runs with the Python of the active environment, {}{}; `--python {}` chooses the cluster's"
_SLOW = ", in a fresh interpreter, which takes about two seconds more"
_NOT_USED = "the active environment, {}, {}: the script runs with the cluster's Python, as with `--python {}`"


def choose(plan: RunPlan, environment: Mapping[str, str]) -> tuple[boot.Interpreter | None, str]:
    """Return the Python for a script, None for that of this process, and a note for the user, which can be empty.

    `environment` is that of the script. Raises ClusterError: the Python that the user has named cannot run the script.
    """
    if not can_choose(plan):
        return None, ""
    if (named := plan.options.parameters.get("python")) is not None:
        return _check_named(named, environment, has_seed=plan.options.parameters.get("seed") is not None), ""
    folder = active_environment(environment)
    if not folder or _is_same_folder(folder, sys.prefix):
        return None, ""
    is_first = plan.member is None or all(plan.member.get(name, "0") == "0" for name in _NUMBERS)
    python = os.path.join(plan.options.parameters["cwd"], folder, "bin", "python")
    own = shlex.quote(sys.executable)
    try:
        interpreter = boot.describe(python, environment, settings.PYTHON_ANSWER_SECONDS)
        problem = _find_problem(interpreter)
    except OSError as error:
        problem = f"cannot be used ({python}: {error.strerror})"
    if problem:
        return None, _NOT_USED.format(folder, problem, own) if is_first else ""
    if _is_own(interpreter):
        return None, ""
    slow = _SLOW if "tensorflow" in sys.modules else ""  # else all scripts import it by themselves
    return interpreter, _USED.format(python, slow, own) if is_first else ""


def check_for_members(plan: RunPlan) -> None:
    """Raise a ClusterError if the Python that the user has named cannot run the members of a launch."""
    parameters = plan.options.parameters
    if plan.caller is not None and (named := parameters.get("python")) is not None:
        _check_named(named, plan.caller.environment, has_seed=parameters.get("seed") is not None)


def can_choose(plan: RunPlan) -> bool:
    """Return whether the script can have another Python than the cluster's: it runs where its command is.

    Members and trials on several hosts have the Pythons of their hosts, which are alike.
    """
    return plan.caller is not None and not plan.spans_hosts


def active_environment(environment: Mapping[str, str]) -> str:
    """Return the folder of the active virtual environment, or that of conda; an empty string if there is none."""
    if folder := environment.get("VIRTUAL_ENV"):
        return folder
    return "" if environment.get("CONDA_DEFAULT_ENV") == _CONDA_BASE else environment.get("CONDA_PREFIX", "")


def _check_named(python: str, environment: Mapping[str, str], *, has_seed: bool) -> boot.Interpreter | None:
    """Return the Python that the user has named, or None if it is that of this process.

    One without TensorFlow can run a script, unless TensorFlow is to be seeded.
    """
    if python == sys.executable:
        return None
    try:
        interpreter = boot.describe(python, environment, settings.PYTHON_ANSWER_SECONDS)
    except OSError as error:
        hint = "Name a Python: `tfcluster run --python PATH …`."
        raise usage_error(f"--python {python}: {error.strerror}", hint) from None
    if _is_own(interpreter):
        return None
    is_old = _is_old(interpreter)
    requires_tensorflow = has_seed or tensorflow_version(interpreter.path) is not None
    if (problem := _find_problem(interpreter)) and (requires_tensorflow or is_old):
        pip = f"{shlex.quote(python)} -m pip install tensorflow=={tensorflow_version()}"
        hint = f"The cluster's Python is {sys.executable}."
        raise usage_error(f"--python {python} {problem}", hint if is_old else f"Install it with `{pip}`. {hint}")
    return interpreter


def _find_problem(interpreter: boot.Interpreter) -> str:
    """Return why a Python cannot replace the cluster's; an empty string if it can."""
    if _is_old(interpreter):
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return f"has Python {interpreter.version}, and scripts of a cluster require {oldest} or newer"
    if (version := tensorflow_version(interpreter.path)) is None:
        return f"has no TensorFlow, and the cluster has {tensorflow_version()}"
    if version != (expected := tensorflow_version()):
        return f"has TensorFlow {version}, and the cluster has {expected}"
    return ""


def _is_old(interpreter: boot.Interpreter) -> bool:
    return tuple(int(part) for part in interpreter.version.split(".")[:2]) < OLDEST_PYTHON


def _is_own(interpreter: boot.Interpreter) -> bool:
    """Return whether a Python is that of this process, by another name."""
    return _is_same_folder(interpreter.prefix, sys.prefix) and interpreter.version == sys.version.split()[0]


def _is_same_folder(folder: str, other: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)
