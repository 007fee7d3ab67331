"""Describe what a dry run cannot check on a host without changing it; these are notes, not problems of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.openssh import InterpreterError

# Prefixes of the environment variables that affect what Python or the dynamic linker loads.
_LOADING = ("PYTHON", "LD_")


def interpreter(host: Host, problem: InterpreterError) -> str:
    """Return the note that the Python of a host with setup commands does not run, as these commands may install it."""
    if problem.is_missing:
        return f"python: {host.interpreter} does not exist yet; `setup:` may make it: not examined"
    what = problem.message.removeprefix(f"host {host.name!r}: ")
    return f"python: {what}; `setup:` may change that: not examined"


def split(
    host: Host, missing: Sequence[ClusterError], found: Mapping[str, Any]
) -> tuple[list[ClusterError], list[str]]:
    """Separate the problems of a host from what cannot be determined without changing it.

    Args:
        host: The host.
        missing: An error for each package that is not installed for the host's Python.
        found: The return value of `Probe.survey`.

    Returns:
        The problems, and the notes about what was not checked.
    """
    problems = [*missing, *map(ClusterError.from_json, found["folders"])]
    notes = of_environment(host)
    if not found["setup"]:
        notes += [f"{problem.message}; `setup:` may change that: not examined" for problem in problems]
        return [], [*notes, "`setup:` has not been run there: what it changes is not examined"]
    if missing and found["pythonpath"]:
        left = "there is a PYTHONPATH there, which an examination leaves out: not examined"
        notes += [f"{problem.message}; {left}" for problem in missing]
        return problems[len(missing) :], notes
    return problems, notes


def of_environment(host: Host) -> list[str]:
    """Return a note that names the host's variables that affect what is loaded there, as a dry run does not set them.

    The list is empty if the host has no such variables.
    """
    names = [name for name in host.env if name.startswith(_LOADING)]
    return [f"env: {', '.join(names)}: not set for this, so what that changes is not examined"] if names else []
