"""The command `tfcluster launch`: a group of processes that run the user's script, one for each task of some jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfcluster.cli.completion import complete_jobs
from tfcluster.cli.hints import remember_cluster, remember_target
from tfcluster.cli.options import (
    SpecFile,
    WholeNumber,
    named_in_command,
    resolve_target,
    submission_options,
)
from tfcluster.cli.run import make_request
from tfcluster.cli.script_command import ScriptCommand
from tfcluster.core.programs import SCRIPT
from tfcluster.errors import ClusterError, ExitCode, usage_error

if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster


@click.command(
    "launch",
    cls=ScriptCommand,
    epilog="Example: tfcluster launch --workers 2 train.py --epochs 3",
    context_settings={
        "auto_envvar_prefix": "TFCLUSTER_LAUNCH",
        "allow_interspersed_args": False,  # all arguments after the script's path belong to the script
    },
)
@click.option(
    "--each",
    metavar="JOB[,JOB...]",
    shell_complete=complete_jobs,
    help="The jobs whose tasks get a member. Default: worker, and chief if there is one.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="How often the whole group is restarted after a failure.",
)
@click.option(
    "--spec",
    type=SpecFile(path_type=Path),
    metavar="FILE",
    callback=remember_target,
    help="Bring the cluster of this spec up for the run.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Bring N workers up on this machine for the run."
)
@click.option(
    "--network",
    type=click.Choice(["closed", "private", "open"]),
    help="Who can connect to the members of --workers, as `network:` in a spec says.  [default: closed]",
)
@click.option("--seed", type=WholeNumber(0, 2**63 - 1), help="The seed of the random numbers of all members.")
@submission_options
def command(
    each: str | None,
    max_restarts: int,
    spec: Path | None,
    workers: int | None,
    network: str | None,
    seed: int | None,
    timeout: float | None,
    name: str | None,
    detach: bool,
    notify: str | None,
    cluster: str | None,
    output: str,
    **script: Any,
) -> int:
    """Start SCRIPT.py once for each task of the job `worker` (and of `chief`, if there is one), on the task's host.

    Each process is a member of one group, and finds its own place in TF_CONFIG, with free addresses, as
    MultiWorkerMirroredStrategy requires. In ARGS, {job}, {index}, {rank}, {world_size}, {address} and {JOB_hosts}
    (such as {ps_hosts}) are replaced.

    If one member fails, the others are stopped, and its error is shown, with its last lines if they are out of view.
    When all others have succeeded, members of the job `ps` are stopped. A launch is a run like any other: Ctrl-C
    cancels it.

    If no cluster is up, --spec FILE or --workers N starts one without servers, and stops it at the end.
    """
    if spec is not None or workers is not None:
        cluster = named_in_command(cluster)
    _check_target(spec, workers, network, cluster)
    if spec is not None or workers is not None:
        from tfcluster.client.cluster import prestart_agent

        prestart_agent()  # before the other imports, so that these and the agent's run in parallel
    from tfcluster.cli.run_options import SharedOptions
    from tfcluster.cli.runs import show
    from tfcluster.cli.script import script_submission
    from tfcluster.client.runs.launch import launch, make_group

    shared = SharedOptions(seed, (), None, False, timeout, False, None, detach, cluster, output, name, notify)
    request = make_request(SCRIPT, script_submission(seed, **script), shared)
    jobs = tuple(job.strip() for job in each.split(",")) if each else ()
    group = make_group(request, jobs, max_restarts=max_restarts)
    with _cluster(spec, workers, network, cluster, jobs, detach, output) as target:
        if spec is not None or workers is not None:
            remember_cluster(target.name)
        return show(launch(group, target), target, output, detached=detach)


def _check_target(spec: Path | None, workers: int | None, network: str | None, cluster: str | None) -> None:
    if sum(option is not None for option in (spec, workers, cluster)) > 1:
        raise click.UsageError("Give only one of --spec, --workers and --cluster.")
    if network is not None and workers is None:
        raise click.UsageError("--network is for --workers: a spec says it with `network:`.")


@contextlib.contextmanager
def _cluster(
    spec: Path | None,
    workers: int | None,
    network: str | None,
    named: str | None,
    jobs: Sequence[str],
    detach: bool,
    output: str,
) -> Iterator[Cluster]:
    """Find the cluster to launch on or, for --spec and --workers, bring it up for the time of the run."""
    from tfcluster.client.resolve import check_source, find_cluster, load_spec_topology, spec_source
    from tfcluster.client.runs.launch import claim_cluster, is_up, temporary_cluster, workers_topology
    from tfcluster.core.groups import select_members

    if spec is None and workers is None:
        yield _running_cluster(named)
        return
    source = spec_source(spec, None) if workers is None else "--workers"
    with contextlib.ExitStack() as stack:
        request = None
        if workers is None:
            topology, request = load_spec_topology(spec, None)
            stack.enter_context(claim_cluster(topology.cluster))
        else:
            topology = stack.enter_context(workers_topology(workers, network or "closed"))
        select_members(topology, jobs)  # before anything starts
        if is_up(topology.cluster):
            stack.close()  # other launches may use it too
            check_source(topology.cluster, source)
            yield find_cluster(topology.cluster).upgrading()
            return
        if detach:
            raise usage_error(
                "a run that is detached requires a cluster that stays up",
                "Start it with `tfcluster up` first; or leave out --detach.",
            )
        if request is not None:
            from tfcluster.cli.up import status_line
            from tfcluster.client.hosts import temporary_hosts

            with status_line(output) as show:
                topology = stack.enter_context(temporary_hosts(topology, request, show))
        yield stack.enter_context(temporary_cluster(topology, source))


def _running_cluster(named: str | None) -> Cluster:
    try:
        return resolve_target(named).upgrading()
    except ClusterError as error:
        if error.exit_code is not ExitCode.NOT_RUNNING:
            raise
        hint = f"{error.hint} Or start one for this run only: `tfcluster launch --workers 2 SCRIPT.py`, or --spec FILE."
        raise ClusterError(error.message, hint=hint, exit_code=error.exit_code) from None
