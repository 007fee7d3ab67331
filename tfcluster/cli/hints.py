"""Remember the cluster or spec that the command line names, and complete the hints of errors with it."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from tfcluster.cli.variables import find_variable
from tfcluster.errors import ClusterError, ExitCode

_CLUSTER, _SPEC = "tfcluster.cluster", "tfcluster.spec"
_VARIABLE = "tfcluster.variable"  # the variable that names the cluster, and its value; not set if none does


def remember_target(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Remember the cluster or the spec that the command line names, for hints; the callback of the parameter."""
    source = ctx.get_parameter_source(str(param.name))
    if value and source is ParameterSource.COMMANDLINE:
        ctx.meta[f"tfcluster.{param.name}"] = str(value)
    elif value and source is ParameterSource.ENVIRONMENT and param.name == "cluster":
        ctx.meta[_VARIABLE] = find_variable(ctx, param), str(value)
    return value


def remember_cluster(name: str) -> None:
    """Remember the cluster of a spec that the command line names."""
    click.get_current_context().meta[_CLUSTER] = name


def complete_error(error: ClusterError) -> None:
    """Complete the hint of an error, and name the variable if one names the cluster that the error is about."""
    error.hint = complete_hint(error.hint)
    variable, name = click.get_current_context().meta.get(_VARIABLE, ("", ""))
    if name and error.exit_code in (ExitCode.USAGE, ExitCode.NOT_RUNNING) and f"{name!r}" in error.message:
        error.hint = f"{error.hint} {variable} is set to {name!r}."


def complete_hint(hint: str) -> str:
    """Return a hint whose commands can be typed where the user's own command was typed."""
    context = click.get_current_context(silent=True)
    if context is None or "`tfcluster " not in hint:
        return hint
    from tfcluster.core.hints import complete_commands

    cluster = context.meta.get(_CLUSTER, "")
    return complete_commands(hint, cluster, context.meta.get(_SPEC) or _recorded_spec(cluster))


def _recorded_spec(cluster: str) -> str:
    """Return the file that a cluster was started from; empty if it is not known, or a command finds it by itself."""
    from tfcluster.client.cluster import recorded_spec
    from tfcluster.paths import DEFAULT_SPEC, running_clusters

    if not cluster:
        running = [] if DEFAULT_SPEC.exists() else running_clusters()
        cluster = running[0] if len(running) == 1 else ""
    spec = recorded_spec(cluster) if cluster else None
    return spec if spec is not None and os.path.isfile(spec) else ""
