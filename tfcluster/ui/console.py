"""The terminal: consoles, text and tables; coloured on a terminal, plain in a pipe, control characters escaped."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import rich.text
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from tfcluster import settings
from tfcluster.control_characters import escape_control_characters
from tfcluster.core.status import TaskStatus
from tfcluster.ui.format import format_bytes, format_duration, format_optional, short_device, style_of


@cache
def console() -> Console:
    """Return the console on standard output; rich itself honours FORCE_COLOR."""
    return _console(stderr=False)


@cache
def error_console() -> Console:
    """Return the console on standard error, for progress."""
    return _console(stderr=True)


def is_interactive(target: Console) -> bool:
    """Return whether a live display may be used on a console: only if standard output is a terminal too."""
    return target.file.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _console(*, stderr: bool) -> Console:
    # With a width of 0, as COLUMNS may say, rich prints nothing at all.
    has_width = (sys.stderr if stderr else sys.stdout).isatty() and os.environ.get("COLUMNS") != "0"
    # rich keeps bold and the like with NO_COLOR; without a colour system, it prints plain text.
    color: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return SafeConsole(
        stderr=stderr,
        width=None if has_width else settings.PIPE_COLUMNS,
        color_system=color,
        highlight=False,
        soft_wrap=False,
        emoji=False,
        markup=False,
    )


class SafeConsole(Console):
    """A console that escapes control characters in all text; only rich's own control codes reach the terminal."""

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        """Convert a plain string to a Text, with its control characters escaped before rich measures it."""
        return super().render_str(escape_control_characters(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object; this escapes the texts that rich created by itself, such as those of a progress bar."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escape_control_characters(segment.text))


class Text(rich.text.Text):
    """A rich Text whose control characters are escaped before rich measures the text and strips some of them."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(escape_control_characters(text), *arguments, **options)

    def append(self, text: rich.text.Text | str, style: Any = None) -> rich.text.Text:
        """Append text with its own style."""
        return super().append(escape_control_characters(text) if isinstance(text, str) else text, style)

    @classmethod
    def assemble(cls, *parts: Any, **options: Any) -> Text:
        """Create a text from strings, pairs of a string and its style, and other texts."""
        text = super().assemble(*parts, **options)
        assert isinstance(text, cls), "rich makes it with this class, and by `append`"
        return text


class _Table(Table):
    """A table whose lines end with their text: in a pipe, one long cell would give all lines its width in spaces.

    On a terminal that is too narrow, it is wider than the terminal instead of having cells that are cut off, unless it
    has columns that can be wrapped: the name of a run that is cut off cannot be typed.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        if all(column.no_wrap for column in self.columns):
            whole = self.__rich_measure__(console, options.update(max_width=settings.PIPE_COLUMNS)).maximum
            options = options.update(max_width=max(options.max_width, whole))
        parts = super().__rich_console__(console, options)
        for line in Segment.split_lines(part for part in parts if isinstance(part, Segment)):
            while line and not line[-1].text.strip():
                line.pop()
            yield from line[:-1]
            yield from (last._replace(text=last.text.rstrip()) for last in line[-1:])
            yield Segment.line()


def make_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), wrapped: Sequence[str] = ()
) -> Table:
    """Create a table; a cell that contains a state has the state's colour.

    Columns in `right`, such as numbers, are aligned to the right. Cells of those in `wrapped` are wrapped if necessary.
    """
    result = _Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        result.add_column(column, justify=justify, no_wrap=column not in wrapped, overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell, style=style_of(cell)) for cell in row))
    return result


#: The space between two columns.
GAP = 2
TASK_CELLS: dict[str, Callable[[TaskStatus], str]] = {
    "TASK": lambda task: task.short,
    "HOST": lambda task: task.host,
    "ADDRESS": lambda task: task.address,
    "STATE": lambda task: task.state.value,
    "PID": lambda task: format_optional(task.pid),
    "UPTIME": lambda task: format_duration(task.uptime_s),
    "RESTARTS": lambda task: str(task.restarts),
    "CPU": lambda task: "-" if task.cpu_percent is None else f"{task.cpu_percent:.0f}%",
    "MEMORY": lambda task: format_bytes(task.rss_bytes),
    "DEVICES": lambda task: " ".join(map(short_device, task.devices)) or "-",
}


def cell_width(texts: Iterable[str]) -> int:
    """Return the width of a column, with the space after it."""
    return GAP + max(Text(text).cell_len for text in texts)


def fit_columns(
    columns: Sequence[str], rows: Sequence[Mapping[str, str]], left_out: Sequence[str], width: int
) -> list[str]:
    """Return the columns that are left if those in `left_out` are left out, in this order, until the width suffices."""
    widths = {column: cell_width([column, *(row[column] for row in rows)]) for column in columns}
    fitting = list(columns)
    for column in left_out:
        if sum(widths[each] for each in fitting) <= width:
            break
        if column in fitting:
            fitting.remove(column)
    return fitting


def make_tasks_table(tasks: Sequence[TaskStatus]) -> Table:
    """Return a table with a row for each task, and a column for the hosts if there are several."""
    columns = ["TASK", "HOST", "ADDRESS", "STATE"]
    if len({task.host for task in tasks}) == 1:
        columns.remove("HOST")
    return make_table(columns, [[TASK_CELLS[column](task) for column in columns] for task in tasks])
