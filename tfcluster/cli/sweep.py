"""The command `tfcluster sweep`: trainings with different parameters, over all hosts of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tfcluster.cli.completion import complete_jobs
from tfcluster.cli.options import (
    InputFile,
    WholeNumber,
    cluster_option,
    detach_option,
    name_option,
    notify_option,
    output_option,
    resolve_target,
    run_timeout_option,
)
from tfcluster.cli.output import echo, echo_json
from tfcluster.cli.run import make_request
from tfcluster.core.programs import SCRIPT
from tfcluster.errors import usage_error

if TYPE_CHECKING:
    from tfcluster.core.runs import Sweep

#: The options that only a sweep has, and whether they have a value; they are recognized after the script, too.
_OWN = {
    **dict.fromkeys(["--from", "--on", "--at-a-time", "--random", "--best", "--max-failures"], True),
    "--dry-run": False,
}


class _Sweep(click.Command):
    """The command, whose options are followed by those of scripts."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; those of scripts are not imported before they are needed."""
        from tfcluster.cli import script

        added = super().get_params(ctx)[len(self.params) :]  # --help, which stands last
        of_scripts = [param for param in script.command.params if param.name != "start_timeout"]
        return [*self.params, *of_scripts, *added]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does, after moving the options that only a sweep has to the front."""
        return super().parse_args(ctx, _own_options_first(args))


def _own_options_first(args: Sequence[str]) -> list[str]:
    """Return arguments with the options of `_OWN` before all others; what comes after `--` is the script's."""
    own: list[str] = []
    others: list[str] = []
    remaining = iter(args)
    for argument in remaining:
        if argument == "--":
            others += remaining
        elif argument.partition("=")[0] not in _OWN:
            others.append(argument)
        elif not _OWN[argument.partition("=")[0]] or "=" in argument:
            own.append(argument)
        elif (value := next(remaining, None)) is not None:
            own += [argument, value]
        else:
            raise click.BadOptionUsage(argument, f"Option {argument!r} requires an argument.")
    return [*own, *others]


@click.command(
    "sweep",
    cls=_Sweep,
    epilog="Example: tfcluster sweep train.py --lr '{0.1,0.01}' --batch '{32,64}' --best loss",
    context_settings={
        "auto_envvar_prefix": "TFCLUSTER_SWEEP",
        "allow_interspersed_args": False,  # all arguments after the script's path belong to the script
    },
)
@click.option(
    "--from",
    "source",
    envvar="TFCLUSTER_SWEEP_FROM",
    type=InputFile(),
    metavar="FILE",
    help="A trial for each row of a CSV file, or each line of JSON: {NAME} is replaced by the value in a column.",
)
@click.option(
    "--on",
    metavar="JOB[,JOB...]",
    shell_complete=complete_jobs,
    help="The jobs on whose tasks trials run. Default: worker or, if there is none, all but ps.",
)
@click.option(
    "--at-a-time",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many trials run at the same time on each task.",
)
@click.option("--random", type=click.IntRange(min=1), metavar="N", help="Draw N of the trials.")
@click.option("--seed", type=WholeNumber(0, 2**63 - 1), help="The seed of --random, and of all trials.")
@click.option(
    "--best", metavar="[max:]METRIC", help="Sort the trials by a metric, the lowest first; or with max: the highest."
)
@click.option(
    "--max-failures", type=click.IntRange(min=0), metavar="N", help="Start no other trial when more than N have failed."
)
@click.option("--dry-run", is_flag=True, help="Show the trials and start nothing.")
@run_timeout_option
@name_option
@detach_option
@notify_option
@cluster_option
@output_option
def command(
    source: BinaryIO | None,
    on: str | None,
    at_a_time: int,
    random: int | None,
    seed: int | None,
    best: str | None,
    max_failures: int | None,
    dry_run: bool,
    timeout: float | None,
    name: str | None,
    detach: bool,
    notify: str | None,
    cluster: str | None,
    output: str,
    **script: Any,
) -> int:
    """Run SCRIPT.py once for each combination of parameters: as many trials at a time as the cluster has places.

    In ARGS, in quotes, '{a,b,c}' is a list of values, '{1..10}' a range, and '{0.1..0.001 log 5}' five values on a
    logarithmic scale. Each trial is a process of its own, with the GPUs of the task on which it runs. A trial that
    fails is recorded, and the others continue; if a host is lost, its trials start again on another one.

    The result is a table of the trials with their latest metrics (tfcluster.metric). The sweep succeeds if one of its
    trials does. It is a run like any other: Ctrl-C cancels it.

    The options that only `sweep` has may follow ARGS too; after `--`, all belongs to the script.
    """
    from tfcluster.core.runs import Sweep

    trials = _make_trials(script["args"], source, random, seed)
    sweep = Sweep(trials, at_a_time, max_failures, best)
    _check(sweep)
    if dry_run:
        _show_trials(sweep, output)
        return 0
    from tfcluster.cli.run_options import SharedOptions
    from tfcluster.cli.runs import show
    from tfcluster.cli.script import script_submission
    from tfcluster.client.runs.launch import launch, make_group

    shared = SharedOptions(seed, (), None, False, timeout, False, None, detach, cluster, output, name, notify)
    request = make_request(SCRIPT, script_submission(seed, start_timeout=None, **script), shared)
    jobs = tuple(job.strip() for job in on.split(",")) if on else ()
    target = resolve_target(cluster).upgrading()
    return show(launch(make_group(request, jobs, sweep=sweep), target), target, output, detached=detach)


def _make_trials(
    arguments: Sequence[str], source: BinaryIO | None, count: int | None, seed: int | None
) -> tuple[dict[str, str], ...]:
    """Return the parameters of all trials; a seed that is drawn here is shown."""
    import random

    from tfcluster.core.sweep_file import parse_trials
    from tfcluster.core.sweep_grid import make_trials, parse_arguments

    rows: Sequence[Mapping[str, str]] = [{}] if source is None else parse_trials(source.read(), source.name)
    template = parse_arguments(arguments, list(rows[0]))
    if not template.names:
        what = "no argument has a parameter" if source is None else f"no argument uses a column of {source.name}"
        hint = "Write --lr '{0.1,0.01}', in quotes: a shell replaces braces." if source is None else "Write --lr {lr}."
        raise usage_error(what, hint)
    if count is not None and seed is None:
        import secrets

        seed = secrets.randbits(32)
        echo(f"note: these trials are drawn with --seed {seed}", err=True)
    return make_trials(rows, template.grid, count, random.Random(seed).sample)


def _check(sweep: Sweep) -> None:
    """Raise a ClusterError if --best names no metric."""
    if sweep.best is not None:
        from tfcluster.core.trials import Best

        Best.parse(sweep.best)


def _show_trials(sweep: Sweep, output: str) -> None:
    """Show the trials of a sweep that is not started."""
    from tfcluster.core.trials import TrialQueue

    rows = TrialQueue(sweep, ()).rows()
    if output == "json":
        echo_json({"trials": [{name: row[name] for name in ("trial", "parameters")} for row in rows]})
    else:
        from tfcluster.ui.trials import show_parameters

        show_parameters(rows)
