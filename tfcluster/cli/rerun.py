"""The command `tfcluster rerun`."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from tfcluster.cli.code import approve_code, show_sending
from tfcluster.cli.completion import complete_runs
from tfcluster.cli.options import cluster_option, detach_option, name_option, output_option
from tfcluster.cli.output import echo
from tfcluster.errors import ClusterError, usage_error

if TYPE_CHECKING:
    from tfcluster.core.runs import RunOptions


@click.command("rerun", epilog="Example: tfcluster rerun pi-3f9a")
@click.argument("run", shell_complete=complete_runs)
@name_option
@detach_option
@click.option("--yes", is_flag=True, help="Do not ask before a large amount of code is sent to another host.")
@cluster_option
@output_option
def command(run: str, name: str | None, detach: bool, yes: bool, cluster: str | None, output: str) -> int:
    """Run the program or script of a RUN again, with the same parameters, seed and arguments, in the same folder.

    RUN is an id or a unique prefix of one. The script runs as it is now: a message says if it, or the git commit of its
    folder, has changed since. The cluster must be up.
    """
    from tfcluster.cli.runs import show
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs.launch import launch, make_group
    from tfcluster.client.runs.origin import describe_changes, with_origin
    from tfcluster.client.runs.runs import find_record
    from tfcluster.client.runs.submission import RunSubmission
    from tfcluster.core.runs import RunOptions, check_name, nest_options
    from tfcluster.core.states import RunState
    from tfcluster.programs.registry import find
    from tfcluster.protocol.serialization import decode

    target = resolve_cluster(cluster).upgrading()
    record = find_record(target, run)
    if record["state"] == RunState.UNREADABLE:
        raise ClusterError.from_json(record["error"])
    program = find(record["program"])
    if program is None or record["origin"] is None:
        raise ClusterError(f"{record['run']} cannot be run again: its program {record['program']!r} is not installed")
    then = decode(RunOptions, {"traits": {}, **nest_options(record)["options"]}, lenient=True)
    if name is not None:
        check_name(name)
    name = name or record["run"].rpartition("-")[0]  # that of the run, or else of its program
    with contextlib.ExitStack() as stack:
        upload = _open_input(stack, record["run"], then)
        now = with_origin(replace(then, traits=program.traits(then.parameters), name=name), upload)
        for change in describe_changes(record["run"], then, now):
            echo(change, err=True)
        submission = RunSubmission(
            now,
            detach=detach,
            upload=upload,
            approve_code=partial(approve_code, yes=yes),
            show_sending=show_sending,
            shows_output=output == "text",
        )
        raw = program.declaration.is_script and now.jobs is None
        if now.jobs is None:
            events = submission.events(target)
        else:
            events = launch(make_group(submission, now.jobs, now.max_restarts), target)
        return show(events, target, output, raw=raw, detached=detach)


def _open_input(stack: contextlib.ExitStack, run: str, options: RunOptions) -> BinaryIO | None:
    from tfcluster.input_file import open_input

    path = options.parameters.get("path") if options.upload is None else None
    if path is not None and not Path(path).is_file():
        raise usage_error(f"{path}: the script of {run} no longer exists")
    if options.upload == "":
        raise usage_error(
            f"{run} read its input from a pipe or from standard input, which cannot be read again",
            "Give the input again: `tfcluster run`.",
        )
    if options.upload is None:
        return None
    try:
        return stack.enter_context(open_input(options.upload))
    except OSError as error:
        raise ClusterError(f"{options.upload}: the input of {run}: {error.strerror}") from error
