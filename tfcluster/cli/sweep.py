"""The command `tfcluster sweep`: trainings with different parameters, over all hosts of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import click

from tfcluster.cli.completion import complete_jobs
from tfcluster.cli.options import (
    InputFile,
    WholeNumber,
    resolve_target,
    submission_options,
)
from tfcluster.cli.output import echo, echo_json
from tfcluster.cli.run import make_request
from tfcluster.cli.script_command import ScriptCommand
from tfcluster.core.programs import SCRIPT
from tfcluster.errors import usage_error

#: The options that only a sweep has, and whether they have a value; they are recognized after the script, too.
_OWN = {
    **dict.fromkeys(["--from", "--on", "--at-a-time", "--random", "--best", "--max-failures"], True),
    "--dry-run": False,
}


class _Sweep(ScriptCommand):
    """The command, some of whose options may follow the script's arguments."""

    omitted = ("start_timeout",)  # trials use no tasks

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
            others += ["--", *remaining]
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
@click.option(
    "--seed",
    type=WholeNumber(0, 2**63 - 1),
    help="The seed of --random, and of Python, NumPy and TensorFlow in all trials.",
)
@click.option(
    "--best", metavar="[max:]METRIC", help="Sort the trials by a metric, the lowest first; or with max: the highest."
)
@click.option(
    "--max-failures", type=click.IntRange(min=0), metavar="N", help="Start no other trial when more than N have failed."
)
@click.option("--dry-run", is_flag=True, help="Show the trials and start nothing.")
@submission_options
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
    """Run SCRIPT.py once for each combination of parameters, N trials at a time on each task.

    In ARGS, in quotes, '{a,b,c}' is a list of values, '{1..10}' a range, and '{0.1..0.001 log 5}' five values on a
    logarithmic scale. Each trial is its own process, with the GPUs of the task on which it runs. A trial that
    fails is recorded, and the others continue; if a host is lost, its trials restart on another one.

    The result is a table of the trials with their latest metrics (tfcluster.metric). The sweep succeeds if one of its
    trials does. It is a run like any other: Ctrl-C interrupts its trials, and the next one cancels it.

    The options that only `sweep` has may follow ARGS too; after `--`, all belongs to the script.
    """
    from tfcluster.core.runs import Best, Sweep

    if random is not None and seed is None:
        seed = _draw_seed()
    trials = _make_trials(script["args"], source, random, seed)
    sweep = Sweep(trials, at_a_time, max_failures, None if best is None else Best.parse(best))
    if dry_run:
        _show_trials(trials, output)
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


def _draw_seed() -> int:
    """Draw a seed and show it, so that the same trials can be drawn again."""
    import secrets

    seed = secrets.randbits(32)
    echo(f"note: these trials are drawn with --seed {seed}", err=True)
    return seed


def _make_trials(
    arguments: Sequence[str], source: BinaryIO | None, count: int | None, seed: int | None
) -> tuple[dict[str, str], ...]:
    """Return the parameters of all trials."""
    import random

    from tfcluster.core.sweep_file import parse_trials
    from tfcluster.core.sweep_grid import make_trials, parse_arguments

    rows: Sequence[Mapping[str, str]] = [{}] if source is None else parse_trials(source.read(), source.name)
    template = parse_arguments(arguments, list(rows[0]))
    used = template.names if source is None else template.names & rows[0].keys()
    if not used:
        what = "no argument has a parameter" if source is None else f"no argument uses a column of {source.name}"
        hint = "Write --lr '{0.1,0.01}', in quotes: a shell replaces braces." if source is None else "Write --lr {lr}."
        raise usage_error(what, hint)
    return make_trials(rows, template.grid, count, random.Random(seed).sample)


def _show_trials(trials: Sequence[Mapping[str, str]], output: str) -> None:
    """Show the trials of a sweep that is not started."""
    from tfcluster.core.sweep_grid import to_value

    rows = [
        {"trial": number, "parameters": {name: to_value(text) for name, text in values.items()}}
        for number, values in enumerate(trials)
    ]
    if output == "json":
        echo_json({"trials": rows})
    else:
        from tfcluster.ui.trials import show_parameters

        show_parameters(rows)
