"""Click options and parameter types that several commands share."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tfcluster import settings
from tfcluster.cli.completion import complete_clusters, complete_files
from tfcluster.cli.hints import remember_target

Command = TypeVar("Command", bound=Callable[..., Any])


if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster

    # ParamType is generic since click 8.4
    _IntType = click.ParamType[int]
    _FloatType = click.ParamType[float]
    _PathType = click.ParamType[Path]
    _FileType = click.ParamType[BinaryIO]
else:
    _IntType = _FloatType = _PathType = _FileType = click.ParamType


class WholeNumber(_IntType):
    """A parameter type for integers from `low` to `high`, possibly with an exponent or underscores: 1e7, 10_000_000."""

    name = "number"

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number, or fail with a message that says what is wrong with it."""
        try:
            number = Decimal(value)
            # Decimal("1e999999999") is small, but its conversion to int would exhaust the memory.
            whole = number.is_finite() and abs(number.adjusted()) < 40 and number == number.to_integral_value()
        except (InvalidOperation, TypeError):
            whole = False
        if not whole:
            self.fail(f"{value!r} is not a whole number (1e7 and 10_000_000 are)", param, ctx)
        if not self._low <= number <= self._high:
            self.fail(f"{value} is not between {self._low} and {self._high}", param, ctx)
        return int(number)


class FiniteFloat(click.FloatRange):
    """A parameter type for finite numbers: it rejects infinity and NaN."""

    name = "number"

    def _describe_range(self) -> str:
        """Return the range for --help; click would show `x<=None` for none, and limits that are never reached."""
        return "" if self.min is None else f"x{'>' if self.min_open else '>='}{self.min:g}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number, or fail with a message that says what is wrong with it."""
        with contextlib.suppress(ValueError):  # it is no number, as click says
            if self.max is not None and float(value) > self.max:
                self.fail(f"{value} is more than {self.max:g}", param, ctx)
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Timestamp(_FloatType):
    """A parameter type for times, as Unix seconds: relative to now (10m, 1h30m or 2d ago), or in ISO 8601."""

    name = "time"
    _LONG_AGO = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d+)?)s)?")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the time, or fail with examples of valid values; a time without a zone is in this machine's zone."""
        ago = self._LONG_AGO.fullmatch(value)
        if value and ago:
            days, hours, minutes, seconds = (float(part or 0) for part in ago.groups())
            return time.time() - (((days * 24 + hours) * 60 + minutes) * 60 + seconds)
        try:
            return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value)).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{value!r} is not a time (10m, 1h30m, 2d, 2026-01-31T14:30 and 2026-01-31T13:30Z are)", param, ctx
            )


class OutputFilePath(_PathType):
    """A parameter type for a file that can be written; its suffix, one of `endings`, determines the format."""

    name = "file"

    def __init__(self, endings: Sequence[str]) -> None:
        self._endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Check the path, or fail with a message that says what is wrong with it."""
        path = Path(value)
        if path.suffix.lower() not in self._endings:
            self.fail(f"{value}: the name does not end in {', '.join(self._endings)}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{value}: there is no folder {path.parent} (mkdir -p {path.parent})", param, ctx)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            self.fail(f"{value}: permission denied", param, ctx)
        return path


class SpecFile(click.Path):
    """A parameter type for the path of a spec; `-` is standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        return super().convert("/dev/stdin" if value == "-" else value, param, ctx)


class InputFile(_FileType):
    """A parameter type for a file that is uploaded; `-` is standard input."""

    name = "file"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete the path."""
        return complete_files(ctx, param, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> BinaryIO:
        """Open the file, or fail if it cannot be read to an end; it is closed at the end of the command."""
        from tfcluster.input_file import check_has_end, open_input

        if not isinstance(value, (str, os.PathLike)):
            return cast(BinaryIO, value)
        try:
            if str(value) == "-":
                check_has_end(sys.stdin.fileno())
                return sys.stdin.buffer
            file = open_input(os.fspath(value))  # its name is what the user has typed
        except (OSError, ValueError) as error:
            self.fail(f"{str(value)!r}: {(getattr(error, 'strerror', None) or str(error)).lower()}", param, ctx)
        return file if ctx is None else ctx.with_resource(file)


def seconds(minimum: float) -> FiniteFloat:
    """Return a parameter type for a duration of at least `minimum` seconds."""
    return FiniteFloat(min=minimum, max=1e9)


def _draw(context: click.Context, option: click.Parameter, seed: int | None) -> int:
    import secrets  # slow to import, and needed by few commands

    return secrets.randbits(32) if seed is None else seed


_seed: dict[str, Any] = {
    "type": WholeNumber(0, 2**63 - 1),
    "help": "Seed of the random numbers: the same seed gives the same result. Default: chosen at random and shown; a "
    "script has none.",
}
#: --seed, which is None unless it is given.
seed_option = click.option("--seed", **_seed)
#: --seed of a program that draws one here if none is given, so that it is recorded with the run.
drawn_seed_option = click.option("--seed", callback=_draw, **_seed)
#: --strict, an option of every run.
strict_option = click.option(
    "--strict", is_flag=True, help="Fail if there are fewer GPUs than requested, or if a task is not ready."
)
#: The argument of every command that reads a spec.
spec_argument = click.argument("spec", required=False, type=SpecFile(path_type=Path), callback=remember_target)
#: -c/--cluster, the option of every command on a running cluster.
cluster_option = click.option(
    "-c",
    "--cluster",
    metavar="NAME",
    envvar="TFCLUSTER_CLUSTER",
    callback=remember_target,
    shell_complete=complete_clusters,
    help="The cluster. Default: that of ./cluster.yaml if there is one, else the only one that is running.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The output format.",
)

# The options of every command that starts a run.
name_option = click.option(
    "--name", metavar="NAME", help="Name the run: its id is NAME-3f9a, and NAME alone is enough while it is unique."
)
run_timeout_option = click.option(
    "--timeout", type=seconds(0.1), metavar="S", help="Seconds after which the run is stopped."
)
detach_option = click.option(
    "--detach", is_flag=True, help="Print the run's id and return while it continues; see `tfcluster attach`."
)
notify_option = click.option(
    "--notify",
    metavar="COMMAND",
    help="Run a shell command when the run has ended, with its result as JSON on standard input and in variables.",
)


# The options of every command that shows past events or logs.
def submission_options(function: Command) -> Command:
    """Add the options of each command that submits a run."""
    options = (run_timeout_option, name_option, detach_option, notify_option, cluster_option, output_option)
    for option in reversed(options):
        function = option(function)
    return function


since_option = click.option(
    "--since",
    type=Timestamp(),
    metavar="TIME",
    help="Only from this time on: 10m or 1h30m ago, or 2026-01-31T14:30.",
)
until_option = click.option(
    "--until",
    type=Timestamp(),
    metavar="TIME",
    help="Only up to this time, written as for --since.",
)

#: --timeout, the option of every command that waits only for hosts to answer.
host_timeout_option = click.option(
    "--timeout",
    type=seconds(0.1),
    metavar="S",
    help=f"Seconds to wait for a slow host. Default: {settings.HOST_TIMEOUT_SECONDS:g}, "
    f"or {settings.RPC_TIMEOUT_SECONDS:g} for a cluster on this machine only.",
)
#: --grace, the option of every command that stops tasks.
grace_option = click.option(
    "--grace",
    type=seconds(0.0),
    default=settings.STOP_GRACE_SECONDS,
    show_default=True,
    metavar="S",
    help="Seconds between SIGTERM and SIGKILL.",
)


def resolve_target(cluster: str | None) -> Cluster:
    """Return the cluster that the value of `cluster_option` means."""
    from tfcluster.client.resolve import resolve_cluster  # no command imports the client before it is called

    return resolve_cluster(cluster)


def named_in_command(cluster: str | None) -> str | None:
    """Return a cluster if the command line names it; TFCLUSTER_CLUSTER is for commands on one cluster that is up."""
    source = click.get_current_context().get_parameter_source("cluster")
    return cluster if source is ParameterSource.COMMANDLINE else None


def check_period(since: float | None, until: float | None, *, follow: bool) -> None:
    """Check that --since and --until enclose a time that can be shown, or else raise a UsageError."""
    if until is not None and follow:
        raise click.UsageError("--until cannot be combined with --follow")
    if since is not None and until is not None and since > until:
        raise click.UsageError("--since is later than --until: exchange them (1h is earlier than 10m)")


def unknown_command(ctx: click.Context, name: str, names: Sequence[str], hint: str) -> click.UsageError:
    """Return the error for a command that does not exist; without a hint, it names the one that is nearest."""
    from difflib import get_close_matches

    if not hint and (near := get_close_matches(name, names, 1)):
        hint = f"Did you mean {near[0]!r}?"
    return click.UsageError(f"No such command {name!r}. {hint}".rstrip(), ctx)
