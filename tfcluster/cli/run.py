"""The command group `tfcluster run`: a subcommand for each program, with its own options and those of all runs.

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
from tfcluster.cli.options import resolve_target, unknown_command
from tfcluster.cli.output import show_sending
from tfcluster.cli.programs import own_command
from tfcluster.cli.run_options import SHARED, SharedOptions, Submission, submission_of
from tfcluster.core.programs import BUNDLED, SCRIPT
from tfcluster.errors import usage_error

if TYPE_CHECKING:
    from tfcluster.client.runs.submission import RunSubmission

_NAMES = (*BUNDLED, SCRIPT)
# The environment variable of an option is TFCLUSTER_RUN_OPTION for every program, without the program's name.
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
        return [*_NAMES]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return command_of(name) if name in _NAMES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Programs"):
            formatter.write_dl([(name, own_command(name).short_help or "") for name in _NAMES])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a program, or the path of a script."""
        names = [
            CompletionItem(name, help=own_command(name).short_help) for name in _NAMES if name.startswith(incomplete)
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
    command = click.Command(None, params=SHARED)
    context = click.Context(command, ignore_unknown_options=True, allow_interspersed_args=False)
    try:
        return command.make_parser(context).parse_args(list(args))[1]
    except click.UsageError:  # such as an option without a value, which is an error later too
        return []


def _first_program(args: list[str]) -> str | None:
    """Return the first argument that names a program, unless a script comes first."""
    first = next((word for word in args if word in _NAMES or begins_script(word)), None)
    return None if first is None or begins_script(first) else first


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


def command_of(name: str, use: Callable[[str, Submission, SharedOptions], Any] | None = None) -> click.Command:
    """Build the command of a program with its own options and those of all runs, which its own may replace.

    `use` gets the parsed options, by default to submit a run and show it.
    """
    own = own_command(name)
    replaced, names = {param.name: param for param in own.params}, {param.name for param in SHARED}

    def invoke(**values: Any) -> Any:
        options = SharedOptions(**{each.name: values[each.name] for each in fields(SharedOptions)})
        if options.detach and options.placement_graph is not None:
            message = "this command draws the graph from the run's events"
            raise click.UsageError(f"--placement-graph cannot be combined with --detach: {message}.")
        if options.placement_graph is not None:
            from tfcluster.ui.graph_diagram import refuse_without_graphviz

            refuse_without_graphviz(options.placement_graph)
        if name == SCRIPT:
            from tfcluster.cli.script import script_submission

            given = {param.name: values[param.name] for param in own.params if param.name is not None}
            submission = script_submission(options.seed, **given)
        else:
            submission = submission_of(own, values, detach=options.detach)
        return (use or _submit)(name, submission, options)

    return click.Command(
        name,
        params=[
            *(param for param in own.params if param.name not in names),
            *(replaced.get(param.name, param) for param in SHARED),
        ],
        callback=invoke,
        help=own.help,
        epilog=own.epilog,
        short_help=own.short_help,
        context_settings={**_CONTEXT, **own.context_settings},
    )


def make_request(program: str, submission: Submission, options: SharedOptions) -> RunSubmission:
    """Return the request of a run."""
    from tfcluster.client.runs.submission import RunSubmission, with_origin
    from tfcluster.core.runs import RunOptions, check_name

    if options.name is not None:
        check_name(options.name)
    asked = RunOptions(
        program,
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


def _submit(program: str, submission: Submission, options: SharedOptions) -> int:
    """Submit a run, show its events or, if it is detached, its id, and return the exit code for its result."""
    from tfcluster.cli.runs import show

    request, cluster = make_request(program, submission, options), resolve_target(options.cluster).upgrading()
    return show(
        request.events(cluster),
        cluster,
        options.output,
        raw=program == SCRIPT,
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
    for name, hint in _REFUSED.items():
        if options.get(name) is not None:
            raise usage_error(f"{name} is not an option of a run in Python", hint)
    is_script = begins_script(program)
    name = SCRIPT if is_script else program
    if name not in _NAMES:
        raise usage_error(f"there is no program {program!r}")
    argv = [*_option_argv({**options, "output": "json"}), *([program] if is_script else []), *map(str, arguments)]
    command = command_of(name, lambda *parts: (make_request(*parts), parts[1].on_success))
    with contextlib.ExitStack() as stack:
        try:
            context = stack.enter_context(command.make_context(name, argv))
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
