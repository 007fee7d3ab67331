"""Print text with its control characters escaped, JSON, questions, errors with hints, and the progress of sending."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tfcluster.cli.hints import complete_hint
from tfcluster.cli.variables import find_variable
from tfcluster.control_characters import escape_control_characters
from tfcluster.errors import ClusterError, usage_error

if TYPE_CHECKING:
    from tfcluster.core.status import ClusterStatus
    from tfcluster.ui.progress_views import SendingView

T = TypeVar("T")


def prepare_streams() -> None:
    """Make the standard streams usable: closed ones are /dev/null, and what they cannot encode or decode is escaped.

    A file that is opened later would otherwise get the number of a closed stream, and messages would be written to it.
    """
    for fd, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        name = ("stdin", "stdout", "stderr")[fd]
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - open until the process ends
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def handle_hangup() -> None:
    """Have a terminal that is closed end the command as SIGTERM does, which leaves nothing behind; not with nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))


def while_output_is_read(items: Iterable[T]) -> Iterator[T]:
    """Yield items until the reader of standard output exits, as in `status --watch | head`."""
    poller = select.poll()
    with contextlib.suppress(ValueError, OSError):  # it may be no file
        poller.register(sys.stdout, 0)  # what is always reported: errors
    for item in items:
        yield item
        if any(event & select.POLLERR for _, event in poller.poll(0)):
            return


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, with its control characters escaped, to standard output or standard error."""
    click.echo(escape_control_characters(text), err=err)


def echo_exactly(text: str) -> None:
    """Print text that another program reads exactly as it is; on a terminal, with its control characters escaped."""
    if sys.stdout.isatty():
        echo(text)
    else:
        click.echo(text, color=True)  # which keeps escape sequences


def echo_json(value: Any) -> None:
    """Print a value or dataclass as one line of JSON, in which everything but printable ASCII is escaped."""
    click.echo(json.dumps(value, default=_fields))


def echo_result(output: str, value: Any, text: str) -> None:
    """Print the result of a command in the output format: a value as JSON, or a text."""
    if output == "json":
        echo_json(value)
    else:
        echo(text)


def status_record(status: ClusterStatus) -> dict[str, Any]:
    """Return the status of a cluster as JSON shows it: each task has its short name beside the long one."""
    record: dict[str, Any] = _fields(status)
    tasks = [{"task": task["task"], "name": f"{task['job']}:{task['index']}", **task} for task in record["tasks"]]
    return {**record, "tasks": tasks}


def _fields(value: Any) -> Any:
    from tfcluster.protocol.serialization import to_json

    return to_json(value)


def confirm(question: str) -> bool:
    """Ask a yes-or-no question on standard error and return the answer."""
    return click.confirm(escape_control_characters(question), err=True)


def can_ask(output: str) -> bool:
    """Return whether there is somebody to answer a question of a command with this output format."""
    return output == "text" and sys.stdin.isatty() and sys.stdout.isatty()


def require_consent(question: str, output: str, refusal: ClusterError, declined: str) -> None:
    """Ask a question; raise `refusal` if there is nobody to ask, and an error with the text `declined` after a no."""
    if not can_ask(output):
        raise refusal
    if not confirm(question):
        raise ClusterError(declined)


def echo_error(error: ClusterError) -> None:
    """Print an error and its hint on standard error."""
    # The same rule as rich's, which would be slow to import only for this.
    colour = not os.environ.get("NO_COLOR") and (bool(os.environ.get("FORCE_COLOR")) or sys.stderr.isatty())
    label = click.style("error: ", fg="red", bold=True)
    click.echo(label + escape_control_characters(error.message), err=True, color=colour)
    if error.hint:
        echo(f"hint: {complete_hint(error.hint)}", err=True)


def echo_usage_error(error: click.ClickException) -> None:
    """Print click's message for a usage error, with the control characters of the user's input escaped."""
    buffer = _TerminalText()
    error.show(file=buffer)
    text = buffer.getvalue().removesuffix("\n")
    if isinstance(error, click.UsageError) and (variables := list(_variables(error))):
        text = "; ".join([text.removesuffix("."), *variables])
    echo(text, err=True)


def _variables(error: click.UsageError) -> Iterator[str]:
    """Yield which environment variable an option has its value from, for each option that an error is about."""
    context = error.ctx
    for param in context.command.get_params(context) if context is not None else ():
        is_named = any(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", error.message) for option in param.opts)
        is_meant = is_named or param is getattr(error, "param", None)
        if context and is_meant and context.get_parameter_source(str(param.name)) is ParameterSource.ENVIRONMENT:
            yield f"{max(param.opts, key=len)} is set by {find_variable(context, param)}"


class _TerminalText(io.StringIO):
    """A text buffer that claims to be a terminal, as click would otherwise strip the escape sequences to be shown."""

    def isatty(self) -> bool:
        return True


def approve_code(description: str, *, yes: bool) -> None:
    """Ask, unless `yes` is set, whether to send a large amount of code; raise a ClusterError if the user refuses."""
    if yes:
        echo(description, err=True)
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise usage_error(
            f"{description}: that is a large amount of code to send",
            "List the files that the script does not use in .tfclusterignore, or send it anyway with --yes.",
        )
    elif not confirm(f"{description}\nSend it?"):
        raise ClusterError("nothing was sent", hint=".tfclusterignore names files to leave out, as .gitignore does.")


def show_sending(host: str, size: int, remaining_bytes: int) -> None:
    """Show on a terminal how much of the code has been sent, if that takes over a second."""
    _sending_view().update(host, size, remaining_bytes)


@cache
def _sending_view() -> SendingView:
    from tfcluster.ui.progress_views import SendingView  # most runs send nothing

    return SendingView()
