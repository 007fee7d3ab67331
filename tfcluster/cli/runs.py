"""The commands on runs: `runs`, `attach`, `cancel`, `wait`, `rerun`, `fetch`; and the output of any run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tfcluster import settings
from tfcluster.cli.completion import complete_active_runs, complete_files, complete_logs, complete_runs
from tfcluster.cli.hints import complete_hint
from tfcluster.cli.options import cluster_option, detach_option, name_option, output_option, resolve_target, seconds
from tfcluster.cli.output import approve_code, echo, echo_error, echo_json, echo_result, show_sending, status_record
from tfcluster.errors import ClusterError, ExitCode, usage_error

if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster
    from tfcluster.core.runs import RunOptions
    from tfcluster.ui.run_view import RunView


def show(
    events: Generator[dict[str, Any], None, None],
    cluster: Cluster,
    output: str,
    *,
    raw: bool = False,
    detached: bool = False,
    log_placement: bool = False,
    placement_graph: Path | None = None,
    on_success: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Show the events of a run as they arrive, and return the exit code for its result.

    With `json` as output, each event is printed as a line of JSON, and nothing else. `raw` passes the output of the
    user's own script on byte by byte, and adds nothing to it. Without a result, this shows the id of a run that is
    `detached`, and raises ClusterError for another one. `log_placement` shows the placements too, `placement_graph` is
    the file in which they are drawn. `on_success` is called with the result of a run that succeeded, after it is shown.
    """
    from tfcluster.core.runs import exit_code, script_exit_code

    as_json = output == "json"
    # Closing the events cancels the run if an interrupt arrives while one of them is being shown.
    with contextlib.closing(events):
        # The view is imported while the run starts; but if ssh has to connect first, it is shown at once.
        begun = [] if cluster.connect_head().transport.is_remote else list(itertools.islice(events, 1))
        from tfcluster.ui.run_view import RunView

        view = RunView(silent=as_json, placements=log_placement, raw=raw)
        views: list[Callable[[dict[str, Any]], None]] = [view.update]
        if placement_graph is not None:
            from tfcluster.ui.graph_diagram import PlacedGraph

            graph = PlacedGraph(placement_graph)
            views.append(graph.update)
        with view:
            run, result = _show_events(itertools.chain(begun, events), as_json, views)
    if not result:
        return _end_without_result(run, detached, as_json)
    if not as_json and (result["state"] == "succeeded" or script_exit_code(result) is None):
        view.finish(result)
    elif not as_json:
        _show_script_error(result, view)
    if on_success is not None and result["state"] == "succeeded":
        on_success(result)
    if placement_graph is not None:
        graph.write()
    return int(exit_code(result))


def _end_without_result(run: str, detached: bool, as_json: bool) -> int:
    if not detached:
        raise ClusterError(f"no result recorded for {run or 'the run'}", hint="`tfcluster runs` lists the runs.")
    if not as_json:
        echo(run)
    return int(ExitCode.DONE)


def _show_script_error(result: dict[str, Any], view: RunView) -> None:
    """Show why a script failed if it cannot say so itself: a signal ended it, it has lost tasks, or there is a hint."""
    error = result.get("error") or {"message": "", "hint": ""}
    has_hint = error["hint"] and " failed: " in error["message"]  # of its exception, which it has printed
    # A message of two lines names the tasks that the script has lost.
    if "signal" in result["result"] or "\n" in error["message"] or has_hint:
        echo_error(view.error_of(result))


def _show_events(
    events: Iterable[dict[str, Any]],
    as_json: bool,
    views: Sequence[Callable[[dict[str, Any]], None]],
) -> tuple[str, dict[str, Any]]:
    """Pass the events to the views as they arrive; return the run's id and its result event, each empty if missing."""
    from tfcluster.client.runs.requests import OutputLines

    run = ""
    result: dict[str, Any] = {}
    lines = OutputLines()
    for event in events:
        if as_json:
            for converted in lines.convert(event):
                echo_json(converted)
        for update in views:
            update(event)
        run = event.get("run", run)
        if event["event"] == "result":
            result = event
    return run, result


@click.command("runs", epilog="Example: tfcluster runs -n 5")
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N runs.")
@click.option("--csv", is_flag=True, help="Print the trials of RUN, a sweep, as CSV.")
@cluster_option
@output_option
def command(run: str | None, tail: int | None, csv: bool, cluster: str | None, output: str) -> None:
    """List the cluster's runs, the oldest first, with their inputs, states and results.

    While a script runs, its result is the latest metrics that it has reported with `tfcluster.metric`. With a RUN, show
    its record, including the folder and the git commit that it was started from.

    The records of the latest hundred runs that have ended are kept, even after `down`. Exits with 5 when a host cannot
    be reached; the runs of the others are still shown.
    """
    from tfcluster.client.runs.requests import find_record, list_runs

    if csv and (run is None or output != "text"):
        raise click.UsageError("--csv is for the RUN of a sweep, without -o json.")
    if run is not None:
        target = resolve_target(cluster)
        record = find_record(target, run)
        if csv:
            from tfcluster.ui.trials import to_csv

            echo(to_csv(_trials_of(target, record)).removesuffix("\n"))
        elif output == "json":
            echo_json(record)
        else:
            from tfcluster.ui.listings import show_run

            show_run(record, target.name)
        return
    runs, problem = list_runs(resolve_target(cluster), tail)
    if output == "json":
        echo_json(runs)
    else:
        from tfcluster.ui.listings import show_runs

        show_runs(runs)
    if problem is not None:
        raise problem


def _trials_of(target: Cluster, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trials of a sweep that has ended; raise a ClusterError if the run is not one."""
    from tfcluster.client.runs.requests import attach
    from tfcluster.core.states import ACTIVE_RUN_STATES

    if record["origin"] is None or record["origin"].get("sweep") is None:
        raise usage_error(f"{record['run']} is not a sweep")
    if record["state"] in ACTIVE_RUN_STATES:
        raise usage_error(f"{record['run']} has not ended", f"`tfcluster wait {record['run']}` waits for its end.")
    trials: list[dict[str, Any]] | None = (record["result"] or {}).get("trials")
    if trials is None:  # its driver was killed
        events = [event for event in attach(target, record["run"]) if event["event"] == "trial"]
        trials = list({event["trial"]: event for event in events}.values())
    return trials


@click.command("attach", epilog="Example: tfcluster attach pi-3f9a")
@click.argument("run", required=False, shell_complete=complete_runs)
@cluster_option
@output_option
def attach_command(run: str | None, cluster: str | None, output: str) -> int:
    """Show a RUN's progress and output from its beginning to its result, and exit as `run` itself would.

    RUN is an id or a unique prefix of one, by default the latest run. Ctrl-C detaches and does not affect the run;
    `tfcluster cancel` stops it. A run that has ended is shown from its record, even if the cluster is down.
    """
    from tfcluster.client.runs.requests import attach, latest_run

    known = resolve_target(cluster)
    if run is None:
        run = latest_run(known)
        echo(f"the latest run is {run}", err=True)
    try:
        return show(attach(known, run), known, output)
    except KeyboardInterrupt:
        echo(complete_hint(f"detached; stop it with `tfcluster cancel {run}`"), err=True)
        return int(ExitCode.INTERRUPTED)


@click.command("cancel", epilog="Example: tfcluster cancel pi-3f9a")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_active_runs)
@cluster_option
@output_option
def cancel_command(runs: tuple[str, ...], cluster: str | None, output: str) -> None:
    """Stop each RUN, given by its id or a unique prefix of it, and show how it has ended.

    A run that has ended already is not changed. Exits with 124 if a run has not ended within 20 seconds.
    """
    from tfcluster.client.runs.requests import cancel_run, wait_for_runs

    target = resolve_target(cluster).upgrading()
    cancelled = [str(cancel_run(target, run)["run"]) for run in runs]
    for _, event in wait_for_runs(target, cancelled, settings.CANCEL_TIMEOUT_SECONDS):
        _show_end(event, output)


@click.command("wait", epilog="Example: tfcluster wait pi-3f9a && echo done")
@click.argument("names", nargs=-1, metavar="RUN... | --ready [TASK]...", shell_complete=complete_logs)
@click.option("--ready", is_flag=True, help="Wait until every TASK is ready; without TASK, until all are.")
@click.option("--timeout", type=seconds(0.1), metavar="S", help="Seconds to wait. Default: no limit.")
@cluster_option
@output_option
def wait_command(names: tuple[str, ...], ready: bool, timeout: float | None, cluster: str | None, output: str) -> int:
    """Wait until each RUN has ended, or with --ready until tasks are ready, and show nothing until then.

    RUN is an id, a name, or a unique prefix of an id. The exit code is that of the run, as for `run` and `attach`: 0
    if it succeeded, and for a script the script's own. With several runs, it is that of the first argument whose run
    did not succeed. TASK is a task, a job or a pattern, as for `logs`.

    Exits with 124 if the timeout expires, 4 if a task has failed, 3 if the cluster is not running. Ctrl-C stops only
    the wait.
    """
    if not names and not ready:
        raise click.UsageError("name the runs to wait for, or add --ready to wait for tasks")
    target = resolve_target(cluster)
    if not ready:
        from tfcluster.client.runs.requests import wait_for_runs

        codes = {name: _show_end(event, output) for name, event in wait_for_runs(target, names, timeout)}
        return next((codes[name] for name in names if codes[name]), int(ExitCode.DONE))
    from tfcluster.client.readiness import wait_until_ready
    from tfcluster.core.text import pluralize

    status = wait_until_ready(target, names, timeout)
    echo_result(output, status_record(status), f"{status.cluster}: {pluralize(len(status.tasks), 'task')} ready")
    return int(ExitCode.DONE)


def _show_end(event: dict[str, object], output: str) -> int:
    """Show how a run has ended, and return its exit code."""
    from tfcluster.core.runs import exit_code

    echo_result(output, event, f"{event['run']} {event['state']}")
    if output == "text" and isinstance(error := event.get("error"), dict):
        echo_error(ClusterError.from_json(error))
    return int(exit_code(event))


@click.command("rerun", epilog="Example: tfcluster rerun pi-3f9a")
@click.argument("run", shell_complete=complete_runs)
@name_option
@detach_option
@click.option("--failed", is_flag=True, help="Of a sweep, run only the trials that have not succeeded.")
@click.option("--yes", is_flag=True, help="Do not ask before a large amount of code is sent to another host.")
@cluster_option
@output_option
def rerun_command(
    run: str, name: str | None, detach: bool, failed: bool, yes: bool, cluster: str | None, output: str
) -> int:
    """Run the program or script of a RUN again, with the same parameters, seed and arguments, in the same folder.

    RUN is an id or a unique prefix of one. The script runs as it is now: a message says if it, or the git commit of its
    folder, has changed since. The cluster must be up.
    """
    from tfcluster.cli.programs import own_command
    from tfcluster.client.runs.launch import launch, make_group
    from tfcluster.client.runs.requests import find_record
    from tfcluster.client.runs.submission import RunSubmission, describe_changes, with_origin
    from tfcluster.core.runs import check_name

    target = resolve_target(cluster).upgrading()
    record = find_record(target, run)
    then = _options_of(record)
    if not then.is_script:  # an earlier version may have had other parameters
        known = {param.name for param in own_command(then.program).params}
        then = replace(then, parameters={each: then.parameters[each] for each in then.parameters if each in known})
    if failed:
        then = _with_failed_trials(target, record, then)
    if name is not None:
        check_name(name)
    name = name or record["run"].rpartition("-")[0]  # that of the run, or else of its program
    with contextlib.ExitStack() as stack:
        upload = _open_input(stack, record["run"], then)
        now = with_origin(replace(then, name=name), upload)
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
        raw = now.is_script and now.jobs is None
        if now.jobs is None:
            events = submission.events(target)
        else:
            group = make_group(submission, now.jobs, max_restarts=now.max_restarts, sweep=now.sweep)
            events = launch(group, target)
        return show(events, target, output, raw=raw, detached=detach)


def _options_of(record: dict[str, Any]) -> RunOptions:
    """Return the options of a recorded run; raise a ClusterError if it cannot be run again."""
    from tfcluster.core.programs import BUNDLED, SCRIPT
    from tfcluster.core.runs import RunOptions, nest_options
    from tfcluster.core.states import RunState
    from tfcluster.protocol.serialization import decode

    if record["state"] == RunState.UNREADABLE:
        raise ClusterError.from_json(record["error"])
    if record["program"] not in (*BUNDLED, SCRIPT) or record["origin"] is None:
        raise ClusterError(f"{record['run']} cannot be run again: there is no program {record['program']!r}")
    return decode(RunOptions, nest_options(record)["options"], lenient=True)


def _with_failed_trials(target: Cluster, record: dict[str, Any], options: RunOptions) -> RunOptions:
    """Return the options of a sweep with only the trials that have not succeeded, in their order."""
    done = {trial["trial"] for trial in _trials_of(target, record) if trial["state"] == "succeeded"}
    assert options.sweep is not None, "it has trials"
    rest = tuple(values for number, values in enumerate(options.sweep.trials) if number not in done)
    if not rest:
        raise usage_error(f"all trials of {record['run']} have succeeded", "Without --failed, all run again.")
    return replace(options, sweep=replace(options.sweep, trials=rest))


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


@click.command("fetch", epilog="Example: tfcluster fetch train-3f9a results")
@click.argument("run", shell_complete=complete_runs)
@click.argument("folder", required=False, type=click.Path(), metavar="[DIR]", shell_complete=complete_files)
@click.option("--overwrite", is_flag=True, help="Replace other files of the same names.")
@cluster_option
@output_option
def fetch_command(run: str, folder: str | None, overwrite: bool, cluster: str | None, output: str) -> None:
    """Copy the files that a RUN has written to $TFCLUSTER_OUTPUT to the folder DIR, by default one with the run's id.

    RUN is an id or a unique prefix of one. It may still be running, and its cluster may be down. Files that are here
    already are not copied again, so the same command resumes after an interruption. If several hosts have files
    of the run, each host's files go into a folder named after the host.
    """
    from tfcluster.client.runs.outputs import fetch, find_outputs, reject_conflicts
    from tfcluster.core.text import format_size, pluralize
    from tfcluster.ui.progress_views import FetchView

    target = resolve_target(cluster)
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
