"""The output of `logs`, `events` and `--log-placement`, line by line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from rich.table import Table

from tfcluster.control_characters import escape_control_characters
from tfcluster.core.devices import without_replica
from tfcluster.core.event_kinds import EventKind, event_kind
from tfcluster.core.run_events import PlacementEvent
from tfcluster.ui.console import Text, console, error_console, make_table

_EVENT_STYLES = {EventKind.GOOD: "green", EventKind.BAD: "red", EventKind.PLAIN: ""}
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class LogView:
    """Prints log lines of several tasks, by default with a prefix of the task's name."""

    def __init__(self, *, prefix: bool = True, timestamps: bool = False) -> None:
        self._prefix = prefix
        self._timestamps = timestamps
        self._prefixes: dict[tuple[str, bool], str] = {}
        self._width = 0

    def show(self, task: str, time: float, line: str, *, err: bool = False) -> None:
        """Print one log line of a task, logged at a Unix time in seconds."""
        moment = ""
        if self._timestamps:
            iso = datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
            moment = f"{iso.replace('+00:00', 'Z')} "
        # Do not print through rich: the line must be neither wrapped at the terminal's width nor parsed as markup, and
        # rich takes longer for one line than the agent takes for a hundred.
        out = (error_console() if err else console()).file
        out.write(f"{self.prefix_of(task, err=err)}{moment}{escape_control_characters(line)}\n")
        out.flush()

    def prefix_of(self, task: str, *, err: bool = False) -> str:
        """Return the beginning of a task's lines: its name, in its colour, as wide as those of the others.

        `err` says that the line is for standard error, which may be a terminal while standard output is none.
        """
        if not self._prefix:
            return ""
        if len(task) > self._width:
            self._width = len(task)
            self._prefixes.clear()
        if (task, err) not in self._prefixes:
            screen = error_console() if err else console()
            with screen.capture() as captured:
                screen.print(Text(f"{task:<{self._width}} | ", style=_choose_colour(task)), end="")
            self._prefixes[task, err] = captured.get()
        return self._prefixes[task, err]


def _choose_colour(task: str) -> str:
    """Return the colour of a task, the same in every command; the tasks of a job have one after the other."""
    job, _, index = task.partition(":")
    return _COLOURS[(crc32(job.encode()) + int(index if index.isdigit() else 0)) % len(_COLOURS)]


def format_event(event: Mapping[str, Any], clock: str) -> Text:
    """Format one event: its time, its host (if there are several), its task or the cluster, its name, its details."""
    line = Text.assemble(
        (f"{time.strftime(clock, time.localtime(event['time']))}  ", "dim"),
        f"{event['host']:<10}  " if event.get("host") else "",
        f"{event['task'] or 'cluster':<10}  ",
        (f"{event['event']:<13}", _EVENT_STYLES[event_kind(event["event"])]),
        f"  {event['detail']}",
    )
    line.rstrip()
    return line


def show_event(event: Mapping[str, Any]) -> None:
    """Print one event."""
    console().print(format_event(event, "%Y-%m-%d %H:%M:%S"), soft_wrap=True)


def format_placement(event: PlacementEvent) -> str:
    """Format a placement as a line: the device first, then the operation, whose name may be long."""
    return f"{without_replica(event.device)}  {event.op} ({event.type})"


class PlacementView:
    """Formats and counts the placements of a run's operations."""

    def __init__(self) -> None:
        self._types: dict[str, Counter[str]] = {}

    def line(self, event: PlacementEvent) -> str:
        """Add a placement to the summary and return its line."""
        self._types.setdefault(without_replica(event.device), Counter())[event.type] += 1
        return format_placement(event)

    def summary(self) -> Table | None:
        """Return a table with the number and types of each device's operations, if there are any."""
        if not self._types:
            return None
        rows = [
            (device, f"{types.total():,}", ", ".join(f"{count} {name}" for name, count in types.most_common()))
            for device, types in sorted(self._types.items())
        ]
        return make_table(("DEVICE", "PLACED", "TYPES"), rows, right=("PLACED",))
