"""The command `tfcluster down`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfcluster.cli.hints import remember_cluster
from tfcluster.cli.options import (
    cluster_option,
    grace_option,
    host_timeout_option,
    named_in_command,
    output_option,
    spec_argument,
)
from tfcluster.cli.output import can_ask, confirm, echo, echo_json, require_consent
from tfcluster.errors import ClusterError, ExitCode, usage_error

if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster
    from tfcluster.core.status import RunStatus


@click.command("down", epilog="Example: tfcluster down --grace 2")
@spec_argument
@cluster_option
@click.option(
    "--all",
    "all_clusters",
    is_flag=True,
    envvar="TFCLUSTER_DOWN_ALL",
    help="Stop every cluster of this user on this machine.",
)
@grace_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation, even if runs are cancelled.")
@host_timeout_option
@output_option
def command(
    spec: Path | None,
    cluster: str | None,
    all_clusters: bool,
    grace: float,
    yes: bool,
    timeout: float | None,
    output: str,
) -> None:
    """Stop everything that `up` started, the ps last; the logs and the records of runs are kept.

    The cluster is that of SPEC, a file as for `up`, or of -c. If the spec has `kubernetes:` and the pods were not
    started from this machine, the command asks, or requires --yes, before it stops anything.

    Active runs are cancelled, including detached ones: on a terminal the command asks first, elsewhere it names them.
    On several hosts, runs are cancelled first, then the hosts without a ps are stopped, then those with one. If a host
    is unreachable, the others are still stopped, the command exits with 5, and the next `down` stops that host.
    Exits with 3 if the cluster is not running.
    """
    from tfcluster.client import down
    from tfcluster.ui.progress_views import DownView

    named = named_in_command(cluster) if all_clusters or spec is not None else cluster
    if spec is not None and (named or all_clusters):
        raise usage_error("give one of SPEC, -c and --all")
    if spec is not None:
        _check_spec(spec)
    may_ask = not yes and can_ask(output)
    errors: list[ClusterError] = []
    for each in down.clusters_to_stop(named, all_clusters, spec):
        _confirm_foreign(each, yes, output)
        view = DownView(each.name, silent=output == "json")
        try:
            with view:
                down.take_down(each, grace, timeout, view.update, approve=partial(_approve, each, may_ask))
        except ClusterError as error:  # continue with the other clusters
            if error.exit_code is ExitCode.NOT_RUNNING and named:
                error.hint += " One that another machine has started is found with its file: `tfcluster down SPEC`."
            errors.append(error)
            continue
        if output == "json":
            echo_json({"cluster": each.name, "state": "stopped"})
        else:
            view.finish()
    if errors:
        hints = " ".join(dict.fromkeys(error.hint for error in errors))
        raise ClusterError(
            "\n".join(error.message for error in errors), hint=hints, exit_code=max(error.exit_code for error in errors)
        )


def _check_spec(spec: Path) -> None:
    from tfcluster.input_file import is_descriptor

    if is_descriptor(str(spec)):
        raise usage_error("`down` reads a spec more than once, and this is a pipe", "Name a file, or -c NAME.")
    if not spec.exists():
        raise usage_error(f"there is no file {str(spec)!r}", f"A cluster has its name after -c: `-c {spec.name}`.")


def _confirm_foreign(cluster: Cluster, yes: bool, output: str) -> None:
    """Ask before hosts end that another machine acquired."""
    from tfcluster.client.cluster import read_registry

    if yes or cluster.provider is None or read_registry(cluster.name) is not None:
        return
    remember_cluster(cluster.name)
    where = cluster.provider.place
    what = f"cluster {cluster.name!r}, {where}, was not started from here: all that runs there would end"
    refusal = usage_error(f"{what}: nothing was stopped", "If it is yours, add --yes to stop it.")
    require_consent(f"{what}. Stop it?", output, refusal, "nothing was stopped")


def _approve(cluster: Cluster, may_ask: bool, runs: Sequence[RunStatus]) -> None:
    """Name the runs that are cancelled, and what ends their hosts; ask, if the user can be asked, whether to.

    After a no, this raises a ClusterError.
    """
    from tfcluster.ui.format import format_duration

    names = ", ".join(f"run {run.run} ({run.state.value} for {format_duration(run.seconds)})" for run in runs)
    ends = "" if cluster.provider is None else f", and {cluster.provider.describe_release()}"
    text = f"{cluster.name}: this cancels {names}{ends}"
    if not may_ask:
        echo(text, err=True)
    elif not confirm(f"{text}\nContinue?"):
        raise ClusterError(f"{cluster.name}: nothing was stopped")
