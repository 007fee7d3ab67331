"""What an examination that changes nothing cannot look at on a host, in words: that is not a problem of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.openssh import InterpreterError

# Variables that decide what a Python or the system's linker loads.
_LOADING = ("PYTHON", "LD_")


def interpreter(host: Host, problem: InterpreterError) -> str:
    """Say of a host with setup commands that its Python does not run: they may make it."""
    if problem.is_missing:
        return f"python: {host.interpreter} does not exist yet; `setup:` may make it: not examined"
    what = problem.message.removeprefix(f"host {host.name!r}: ")
    return f"python: {what}; `setup:` may change that: not examined"


def split(
    host: Host, missing: Sequence[ClusterError], found: Mapping[str, Any]
) -> tuple[list[ClusterError], list[str]]:
    """Tell what is wrong with a host from what cannot be known without changing it.

    Args:
        host: The host.
        missing: The packages that its Python has not.
        found: What `Probe.survey` returned.

    Returns:
        The problems, and what is not examined.
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
    """Say which variables of a host matter to what is loaded there; an examination does not set them."""
    names = [name for name in host.env if name.startswith(_LOADING)]
    return [f"env: {', '.join(names)}: not set for this, so what that changes is not examined"] if names else []
