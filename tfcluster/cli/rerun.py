"""The command `tfcluster rerun`."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tfcluster.cli.code import approve_code
from tfcluster.cli.completion import complete_runs
from tfcluster.cli.options import cluster_option, name_option, output_option
from tfcluster.cli.output import echo
from tfcluster.errors import ClusterError, ExitCode

if TYPE_CHECKING:
    from tfcluster.core.runs import RunOrigin


@click.command("rerun", short_help="Run a run again.", epilog="Example: tfcluster rerun pi-3f9a")
@click.argument("run", shell_complete=complete_runs)
@name_option
@click.option("--detach", is_flag=True, help="Print the new run's id and leave it alone; see `tfcluster attach`.")
@click.option("--yes", is_flag=True, help="Do not ask before much code is sent to another host.")
@cluster_option
@output_option
def command(run: str, name: str | None, detach: bool, yes: bool, cluster: str | None, output: str) -> int:
    """Run the program or script of a RUN again, with the same parameters, seed and arguments, in the same folder.

    RUN is an id or a unique prefix of one. The script runs as it is now: a message says if it, or the git commit of its
    folder, has changed since. The cluster must be up.
    """
    from tfcluster.cli.run import make_request
    from tfcluster.cli.runs import RunOutput, show
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs.launch import make_launch
    from tfcluster.client.runs.origin import describe_changes
    from tfcluster.client.runs.runs import find_record
    from tfcluster.core.runs import RunOrigin
    from tfcluster.core.states import RunState
    from tfcluster.programs.api import SharedOptions, Submission
    from tfcluster.programs.registry import find
    from tfcluster.protocol.serialization import decode

    target = resolve_cluster(cluster).upgrading()
    record = find_record(target, run)
    if record["state"] == RunState.UNREADABLE:
        raise ClusterError.from_json(record["error"])
    program = find(record["program"])
    if program is None or record["origin"] is None:
        raise ClusterError(f"{record['run']} cannot be run again: its program {record['program']!r} is not installed")
    origin, parameters = decode(RunOrigin, record["origin"]), record["parameters"]
    with contextlib.ExitStack() as stack:
        upload = _open_input(stack, record, origin)
        shared = SharedOptions(
            None, origin.devices, origin.gpus, origin.strict, record["timeout"], False, None, detach, None, output, name
        )
        approve = partial(approve_code, yes=yes)
        submission = Submission(parameters, upload, origin.upload_name, None, approve, origin.start_timeout)
        request = make_request(program, submission, shared)
        for change in describe_changes(record["run"], parameters, origin, request.describe_origin()):
            echo(change, err=True)
        raw = program.declaration.is_script and origin.jobs is None
        shown = RunOutput(
            json=output == "json", raw=raw, detached=detach, is_remote=target.connect_head().transport.is_remote
        )
        if origin.jobs is None:
            return show(request.events(target), shown)
        return show(make_launch(request, origin.jobs, origin.max_restarts).events(target), shown)


def _open_input(stack: contextlib.ExitStack, record: dict[str, Any], origin: RunOrigin) -> BinaryIO | None:
    """Open the file that was uploaded with a run, if one was."""
    from tfcluster.input_file import open_input

    path = record["parameters"].get("path") if origin.upload is None else None
    if path is not None and not Path(path).is_file():
        raise ClusterError(f"{path}: the script of {record['run']} is not there any more", exit_code=ExitCode.USAGE)
    if origin.upload == "":
        raise ClusterError(
            f"{record['run']} read a pipe or its standard input, which is gone",
            hint="Give the input again: `tfcluster run`.",
            exit_code=ExitCode.USAGE,
        )
    if origin.upload is None:
        return None
    try:
        return stack.enter_context(open_input(origin.upload))
    except OSError as error:
        raise ClusterError(f"{origin.upload}: the input of {record['run']}: {error.strerror}") from error
