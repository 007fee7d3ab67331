"""The arguments of `tfcluster run`, from a call in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tfcluster.cli.run import SCRIPT, begins_script, command_of, make_request
from tfcluster.errors import usage_error

if TYPE_CHECKING:
    from tfcluster.client.runs.submission import RunSubmission
    from tfcluster.programs.api import SharedOptions, Submission
    from tfcluster.programs.registry import InstalledProgram

# Called with the result event of a run that succeeded.
_OnSuccess = Callable[[dict[str, Any]], None]
# The options that make no sense in Python, and what to write instead.
_REFUSED = {
    "cluster": "tfcluster.connect(NAME) chooses the cluster.",
    "output": "on_event=FUNCTION gets each event.",
    "placement_graph": "With log_placement=True the events include the placements; `tfcluster run` draws them.",
}


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
    command = command_of(installed, _make_request)
    with contextlib.ExitStack() as stack:
        try:
            context = stack.enter_context(command.make_context(installed.name, argv))
            parsed = command.invoke(context)
        except click.ClickException as error:
            raise usage_error(error.format_message()) from None
        yield parsed


def _make_request(
    program: InstalledProgram, submission: Submission, options: SharedOptions
) -> tuple[RunSubmission, _OnSuccess | None]:
    return make_request(program, submission, options), submission.on_success


def _option_argv(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                yield option
            elif each is not None and each is not False:
                yield f"{option}={each}"
