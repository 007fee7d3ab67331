"""The command `tfcluster fetch`."""

from __future__ import annotations

from pathlib import Path

import click

from tfcluster.cli.completion import complete_files, complete_runs
from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo, echo_json


@click.command("fetch", epilog="Example: tfcluster fetch train-3f9a results")
@click.argument("run", shell_complete=complete_runs)
@click.argument("folder", required=False, type=click.Path(), metavar="[DIR]", shell_complete=complete_files)
@click.option("--overwrite", is_flag=True, help="Replace other files of the same names.")
@cluster_option
@output_option
def command(run: str, folder: str | None, overwrite: bool, cluster: str | None, output: str) -> None:
    """Copy the files that a RUN has written to $TFCLUSTER_OUTPUT to the folder DIR, by default one with the run's id.

    RUN is an id or a unique prefix of one. It may still be running, and its cluster may be down. Files that are here
    already are not copied again, so the same command resumes after an interruption. If several hosts have files
    of the run, each host's files go into a folder named after the host.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs.outputs import fetch, find_outputs, reject_conflicts
    from tfcluster.core.text import format_size, pluralize
    from tfcluster.ui.progress_views import FetchView

    target = resolve_cluster(cluster)
    outputs, problem = find_outputs(target, run)
    target_folder = Path(folder or outputs[0].run)
    having = [each for each in outputs if each.files]
    view = FetchView(sum(file.size for each in having for file in each.files), silent=output == "json")
    folders = [target_folder / each.host if len(having) > 1 else target_folder for each in having]
    if not overwrite:
        for each, into in zip(having, folders, strict=True):
            reject_conflicts(each, into)
    with view:
        results = [fetch(target, each, into, view.add) for each, into in zip(having, folders, strict=True)]
    files, size = sum(each.files for each in results), sum(each.bytes for each in results)
    unchanged = sum(each.unchanged for each in results)
    if output == "json":
        totals = {"files": files, "bytes": size, "unchanged": unchanged}
        echo_json({"run": outputs[0].run, "folder": str(target_folder), **totals})
    elif not having:
        echo(f"{outputs[0].run} has written nothing to $TFCLUSTER_OUTPUT", err=True)
    else:
        rest = f", {pluralize(unchanged, 'file')} were there already" if unchanged else ""
        echo(f"{pluralize(files, 'file')}, {format_size(size)}, fetched to {target_folder}{rest}")
    if problem is not None:
        raise problem
