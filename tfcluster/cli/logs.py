"""The commands `tfcluster logs` and `events`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tfcluster.cli.completion import complete_hosts, complete_logs
from tfcluster.cli.options import (
    check_period,
    cluster_option,
    output_option,
    resolve_target,
    since_option,
    until_option,
)
from tfcluster.cli.output import echo, echo_json

if TYPE_CHECKING:
    from tfcluster.core.log_levels import LogLevel
    from tfcluster.ui.log_view import LogView


@click.command("logs", epilog="Example: tfcluster logs 'worker:[0-3]' ps --grep loss -f")
@click.argument("tasks", nargs=-1, metavar="[TASK]...", shell_complete=complete_logs)
@click.option("-f", "--follow", is_flag=True, help="Also show what the tasks print from now on, until interrupted.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each.")
@since_option
@until_option
@click.option(
    "-g",
    "--grep",
    multiple=True,
    metavar="PATTERN",
    help="Only lines that match this regular expression, or any of them if given several times. A leading (?i) ignores "
    "case.",
)
@click.option(
    "--level",
    type=click.Choice(["info", "warning", "error"]),
    help="Of TensorFlow's own log, only entries of this level or higher; known harmless ones count as info. Default: "
    "warning on a terminal, otherwise everything. What a program prints is always shown.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    envvar="TFCLUSTER_LOGS_ALL",
    help="Everything that is logged, even on a terminal.",
)
@click.option("-t", "--timestamps", is_flag=True, help="Show the time of each line, in UTC.")
@click.option("--no-prefix", is_flag=True, help="Do not show the tasks' names.")
@click.option(
    "--agent",
    is_flag=False,
    flag_value="",
    metavar="[HOST]",
    shell_complete=complete_hosts,
    help="The logs of the agent and the forwarder on HOST, or on all hosts, instead of the tasks' logs.",
)
@click.option(
    "--placement", is_flag=True, help="Only the placements that sessions with log_device_placement=True have logged."
)
@cluster_option
@output_option
def command(
    tasks: tuple[str, ...],
    follow: bool,
    tail: int | None,
    since: float | None,
    until: float | None,
    grep: tuple[str, ...],
    level: str | None,
    everything: bool,
    timestamps: bool,
    no_prefix: bool,
    agent: str | None,
    placement: bool,
    cluster: str | None,
    output: str,
) -> None:
    """Show the logs of all tasks, or of each TASK: worker:1, /job:worker/task:1, worker for all of a job, or a
    pattern with wildcards in quotes, such as 'worker:[0-3]'. With the id of a run instead of a task, it shows what the
    run's program printed, and for a launch, which member printed it. If the cluster has no servers, as that of `launch
    --workers`, the latest run is shown by default.

    Lines of several tasks are sorted by time. --follow continues when a task or the cluster's agent is restarted. The
    logs of a cluster that is down can be read too. Lines from before the latest start of the cluster are shown only
    with --since, because they can be those of another cluster of the same name.

    --grep searches the logs where they are, on the tasks' hosts. --tail counts the lines that match.
    """
    check_period(since, until, follow=follow)
    from tfcluster.client.logs import read_logs
    from tfcluster.ui.log_view import LogView

    view = LogView(prefix=not no_prefix, timestamps=timestamps)
    if agent is not None and (tasks or placement):
        raise click.UsageError("--agent cannot be combined with TASK or --placement")
    shown = _level(level, everything, is_complete=placement or agent is not None or output == "json")
    with _hidden_entries(shown, is_announced=follow and not placement) as on_hidden:
        lines = read_logs(
            resolve_target(cluster),
            tasks,
            lines=tail,
            since=since,
            until=until,
            follow=follow,
            agent=agent,
            grep=grep,
            level=shown,
            on_hidden=on_hidden,
        )
        (_show_placements if placement else partial(_show_lines, tasks))(lines, view, output)


def _level(name: str | None, everything: bool, *, is_complete: bool) -> LogLevel | None:
    """Return the level from which on entries are shown; None for all of them, as outside a terminal by default."""
    from tfcluster.core.log_levels import LogLevel

    is_typed = click.get_current_context().get_parameter_source("everything") is ParameterSource.COMMANDLINE
    if everything and name is not None and is_typed:
        raise click.UsageError("--all cannot be combined with --level")
    is_default = not everything and not is_complete and sys.stdout.isatty()
    level = LogLevel(name or ("warning" if is_default else "info"))
    return None if level is LogLevel.INFO else level


@contextmanager
def _hidden_entries(shown: LogLevel | None, *, is_announced: bool) -> Iterator[Callable[[int], None]]:
    """Yield what counts the hidden entries of TensorFlow; how many there were is printed at the end."""
    from tfcluster.core.text import pluralize

    if is_announced and shown is not None:  # it may be long until a line is shown
        echo(f"entries of TensorFlow below {shown.value} are hidden: --all shows them", err=True)
    hidden: list[int] = []
    try:
        yield hidden.append
    finally:  # --follow is interrupted
        if hidden and shown is not None:
            entries = pluralize(sum(hidden), "entry of TensorFlow", "entries of TensorFlow")
            echo(f"{entries} below {shown.value} hidden: --all shows them", err=True)


def _show_lines(tasks: Sequence[str], lines: Iterator[dict[str, Any]], view: LogView, output: str) -> None:
    for line in lines:
        if output == "json":
            echo_json(line)
        else:
            name = line["task"]  # or the run, and the member of a launch
            if "member" in line:
                name = line["member"] if len(tasks) == 1 else f"{name} {line['member']}"
            view.show(name, line["time"], line["line"])


def _show_placements(lines: Iterator[dict[str, Any]], view: LogView, output: str) -> None:
    """Show only the placements that the log lines contain, each of them once."""
    from tfcluster.core.placements import parse_placement
    from tfcluster.core.run_events import PlacementEvent, to_record
    from tfcluster.ui.log_view import format_placement

    shown: set[PlacementEvent] = set()
    for line in lines:
        placement = parse_placement(line["line"])
        if placement is None or placement in shown:
            continue
        shown.add(placement)
        if output == "json":
            echo_json(to_record(placement))
        else:
            view.show(line["task"], line["time"], format_placement(placement))


@click.command("events", epilog="Example: tfcluster events -f")
@click.option("-f", "--follow", is_flag=True, help="Also show new events, until interrupted.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N events.")
@since_option
@until_option
@cluster_option
@output_option
def events_command(
    follow: bool, tail: int | None, since: float | None, until: float | None, cluster: str | None, output: str
) -> None:
    """Show the events of the cluster's tasks with their causes: started, ready, died, adopted by another agent.

    The events are kept when the agent is replaced, and after `down`.
    """
    from tfcluster.client.logs import read_events
    from tfcluster.ui.log_view import show_event

    check_period(since, until, follow=follow)
    for event in read_events(resolve_target(cluster), lines=tail, since=since, until=until, follow=follow):
        if output == "json":
            echo_json(event)
        else:
            show_event(event)
