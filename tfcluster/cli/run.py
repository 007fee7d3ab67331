"""The command group `tfcluster run`: a subcommand for each program, built from the program's own options.

A call in Python (`connect().run()`) takes the same arguments.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tfcluster.cli.completion import complete_scripts
from tfcluster.cli.options import (
    OutputFilePath,
    WholeNumber,
    cluster_option,
    detach_option,
    name_option,
    notify_option,
    output_option,
    resolve_target,
    run_timeout_option,
    unknown_command,
)
from tfcluster.cli.output import show_sending
from tfcluster.errors import usage_error

if TYPE_CHECKING:
    from tfcluster.client.runs.submission import RunSubmission
    from tfcluster.programs.api import SharedOptions, Submission
    from tfcluster.programs.registry import InstalledProgram


#: The program that is the user's own script, which `tfcluster run train.py` names by the script's path.
SCRIPT = "script"
# The environment variable of an option is TFCLUSTER_RUN_OPTION for every program, without the program's name.
_CLICK_EXCEPTIONS = (click.ClickException, click.Abort, click.exceptions.Exit)
_CONTEXT = {"auto_envvar_prefix": "TFCLUSTER_RUN"}
# Called with the result event of a run that succeeded.
_OnSuccess = Callable[[dict[str, Any]], None]
# The options that make no sense in Python, and what to write instead.
_REFUSED = {
    "cluster": "tfcluster.connect(NAME) chooses the cluster.",
    "output": "on_event=FUNCTION gets each event.",
    "placement_graph": "With log_placement=True the events include the placements; `tfcluster run` draws them.",
}


class _Programs(click.Group):
    """The group of the programs; an argument that is a file's path is run as a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does, after inserting `script` before a script's path and the options before it.

        As for python, `-m MODULE` is a script too, and may be written as one word. Options before the name of a program
        are moved behind it, if every program has them.
        """
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            rest = _after_shared_options(args)
            if rest and not rest[0].startswith("-"):
                if not begins_script(rest[0]) and self.get_command(ctx, rest[0]) is not None:
                    return super().parse_args(ctx, [rest[0], *args[: -len(rest)], *rest[1:]])
            elif (name := _first_program(rest)) is not None:
                raise click.UsageError(f"A program's options come after its name: {ctx.command_path} {name} ...", ctx)
            start = next((number for number, word in enumerate(args) if begins_script(word)), len(args))
            if args[start:] and args[start].startswith("-m") and args[start] != "-m":
                args = [*args[:start], "-m", args[start][2:], *args[start + 1 :]]
            args = [SCRIPT, *args]
        elif args and begins_script(args[0]):
            args = [SCRIPT, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        from tfcluster.programs.registry import find_all

        return [program.name for program in find_all()[0]]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        from tfcluster.programs.registry import find

        program = find(name)
        return None if program is None else command_of(program)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of programs, and why broken ones of other packages cannot be used."""
        from tfcluster.programs.registry import find_all

        programs, errors = find_all()
        with formatter.section("Programs"):
            formatter.write_dl([(program.name, program.declaration.help) for program in programs])
        if errors:
            with formatter.section("Not available"):
                for error in errors:
                    formatter.write_text(error.message)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a program without importing its options, or the path of a script."""
        from tfcluster.programs.registry import find_all

        names = [
            CompletionItem(program.name, help=program.declaration.help)
            for program in find_all()[0]
            if program.name.startswith(incomplete)
        ]
        scripts = complete_scripts(incomplete)
        if names:  # a shell completes either the paths of files or the given words
            scripts = [item for item in scripts if item.type == "plain"]
        return [*names, *scripts, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None:
            is_there = os.path.exists(args[0])
            hint = f"A script is named by its path: {ctx.command_path} ./{args[0]}" if is_there else ""
            raise unknown_command(ctx, args[0], self.list_commands(ctx), hint)
        return command.name, command, args[1:]


def _after_shared_options(args: list[str]) -> list[str]:
    """Return what follows the options that every program has; it begins with the first other option or argument."""
    command = click.Command(None, params=_shared.params)
    context = click.Context(command, ignore_unknown_options=True, allow_interspersed_args=False)
    try:
        return command.make_parser(context).parse_args(list(args))[1]
    except click.UsageError:  # such as an option without a value, which is an error later too
        return []


def _first_program(args: list[str]) -> str | None:
    """Return the first argument that names a program, unless a script comes first."""
    from tfcluster.core.programs import BUNDLED
    from tfcluster.programs.registry import find_all

    for names in (BUNDLED, [] if any(map(begins_script, args)) else [program.name for program in find_all()[0]]):
        first = next((word for word in args if word in names or begins_script(word)), None)
        if first is not None:
            return None if begins_script(first) else first
    return None


def begins_script(word: str) -> bool:
    """Return whether a word is a script's path, or begins `-m MODULE`."""
    return word.endswith(".py") or "/" in word or word.startswith("-m")


@click.group(
    "run",
    cls=_Programs,
    subcommand_metavar="PROGRAM|SCRIPT.py|-m MODULE [ARGS]...",
    epilog="Example: tfcluster run pi --samples 1e7 --gpus 4",
)
def command() -> None:
    """Run PROGRAM, or your own script or module, on the cluster that is up, and show its progress and result.

    It runs beside the cluster: Ctrl-C cancels it and leaves the cluster as it was.
    """


def command_of(
    program: InstalledProgram, use: Callable[[InstalledProgram, Submission, SharedOptions], Any] | None = None
) -> click.Command:
    """Build the command of a program; `use` gets its parsed options, by default to submit a run and show it."""
    from tfcluster.programs.api import SharedOptions, Submission

    own: click.Command = program.load("options", "command", click.Command)
    shared = _shared.params
    used = {each for param in shared for each in (param.name, *param.opts)}
    if conflicts := sorted(each for param in own.params for each in (*param.opts, str(param.name)) if each in used):
        raise program.error(f"{program.module}.options declares {conflicts[0]}, which every program has already")

    def invoke(**values: Any) -> Any:
        options = SharedOptions(**{each.name: values.pop(each.name) for each in fields(SharedOptions)})
        if options.detach and options.placement_graph is not None:
            message = "this command draws the graph from the run's events"
            raise click.UsageError(f"--placement-graph cannot be combined with --detach: {message}.")
        if options.placement_graph is not None:
            from tfcluster.ui.graph_diagram import refuse_without_graphviz

            refuse_without_graphviz(options.placement_graph)
        assert own.callback is not None, "a command that is made of a function calls it"
        submission = program.call(own.callback, options, **values, passed=_CLICK_EXCEPTIONS)
        if not isinstance(submission, Submission):
            raise program.error(f"{program.module}.options: command() returned no Submission")
        return (use or _submit)(program, submission, options)

    return click.Command(
        program.name,
        params=[*own.params, *shared],
        callback=invoke,
        help=own.help,
        epilog=own.epilog,
        short_help=program.declaration.help,
        context_settings={**_CONTEXT, **own.context_settings},
    )


@click.command()
@click.option(
    "--seed",
    type=WholeNumber(0, 2**63 - 1),
    help="Seed of the random numbers: the same seed gives the same result. Default: chosen at random and "
    "shown; a script has none.",
)
@click.option(
    "--devices",
    multiple=True,
    metavar="PATTERN",
    help="Devices to compute on, such as '/job:worker/task:*/device:CPU:0'; can be given several times.",
)
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="How many GPU devices to use.")
@click.option("--strict", is_flag=True, help="Fail if there are fewer GPUs than requested, or if a task is not ready.")
@click.option("--log-placement", is_flag=True, help="Show each operation with the device it is placed on.")
@click.option(
    "--placement-graph",
    type=OutputFilePath((".svg", ".dot")),
    metavar="FILE",
    help="Draw the placed graph in FILE, a colour for each device: .dot, or .svg (requires Graphviz).",
)
@run_timeout_option
@name_option
@detach_option
@notify_option
@cluster_option
@output_option
def _shared() -> None:
    """Have the options that every program has; their names are the fields of SharedOptions."""


def make_request(program: InstalledProgram, submission: Submission, options: SharedOptions) -> RunSubmission:
    """Return the request of a run."""
    from tfcluster.client.runs.submission import RunSubmission, with_origin
    from tfcluster.core.runs import RunOptions, check_name

    if options.name is not None:
        check_name(options.name)
    asked = RunOptions(
        program.name,
        program.traits(submission.parameters),
        submission.parameters,
        devices=options.devices,
        gpus=options.gpus,
        strict=options.strict,
        timeout=options.timeout,
        start_timeout=submission.start_timeout,
        log_placement=options.log_placement or options.placement_graph is not None,
        name=options.name,
        notify=options.notify,
        upload_name=submission.upload_name,
    )
    return RunSubmission(
        with_origin(asked, submission.upload),
        detach=options.detach,
        upload=submission.upload,
        approve_code=submission.approve_code,
        show_sending=show_sending,
        shows_output=options.output == "text",
    )


def _submit(program: InstalledProgram, submission: Submission, options: SharedOptions) -> int:
    """Submit a run, show its events or, if it is detached, its id, and return the exit code for its result."""
    from tfcluster.cli.runs import show

    request, cluster = make_request(program, submission, options), resolve_target(options.cluster).upgrading()
    return show(
        request.events(cluster),
        cluster,
        options.output,
        raw=program.declaration.is_script,
        detached=options.detach,
        log_placement=options.log_placement,
        placement_graph=options.placement_graph,
        on_success=submission.on_success,
    )


@contextlib.contextmanager
def parse_request(
    program: str, arguments: Iterable[object], options: Mapping[str, Any]
) -> Iterator[tuple[RunSubmission, _OnSuccess | None]]:
    """Return the request of a run from the arguments and options of `tfcluster run`; its upload is open in the context.

    With it comes what to call with the result event if the run succeeds, such as the function that draws a plot.
    Options have their names with `_` for `-`, and the value True for a flag or a sequence for several values.
    """
    from tfcluster.programs.registry import find

    for name, hint in _REFUSED.items():
        if options.get(name) is not None:
            raise usage_error(f"{name} is not an option of a run in Python", hint)
    is_script = begins_script(program)
    installed = find(SCRIPT if is_script else program)
    if installed is None:
        raise usage_error(f"there is no program {program!r}")
    argv = [*_option_argv({**options, "output": "json"}), *([program] if is_script else []), *map(str, arguments)]
    command = command_of(installed, lambda *parts: (make_request(*parts), parts[1].on_success))
    with contextlib.ExitStack() as stack:
        try:
            context = stack.enter_context(command.make_context(installed.name, argv))
            parsed = command.invoke(context)
        except click.ClickException as error:
            raise usage_error(error.format_message()) from None
        yield parsed


def _option_argv(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                yield option
            elif each is not None and each is not False:
                yield f"{option}={each}"
