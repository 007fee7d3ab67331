"""The trials of a sweep: a table of their parameters and metrics, as text or CSV, and a line on what happens to one."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from tfcluster.core.run_events import TrialEvent
from tfcluster.core.text import pluralize
from tfcluster.ui.console import console, make_table
from tfcluster.ui.format import format_duration

Row = Mapping[str, Any]


def show_parameters(rows: Sequence[Row]) -> None:
    """Print a table of trials that were not started."""
    names = _names(rows, "parameters")
    cells = [(str(row["trial"]), *_values(row["parameters"], names)) for row in rows]
    console().print(make_table(("TRIAL", *names), cells, right=("TRIAL",)), soft_wrap=True)


def make_trials_table(rows: Sequence[Row]) -> Table:
    """Return a table of trials, in the order of the rows."""
    parameters, metrics = _names(rows, "parameters"), _names(rows, "metrics")
    cells = [
        (
            str(row["trial"]),
            *_values(row["parameters"], parameters),
            row["state"],
            *_values(row["metrics"], metrics),
            row["host"] or "-",
            "-" if row["seconds"] is None else format_duration(row["seconds"]),
        )
        for row in rows
    ]
    columns = ("TRIAL", *parameters, "STATE", *metrics, "HOST", "TIME")
    return make_table(columns, cells, right=("TRIAL", "TIME", *metrics))


def to_csv(rows: Sequence[Row]) -> str:
    """Return the same table as CSV; names that are taken have `parameter` or `metric` before."""
    parameters, metrics = _names(rows, "parameters"), _names(rows, "metrics")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ["trial", "state", "host", "seconds"]
    first = [f"parameter {name}" if name in columns else name for name in parameters]
    last = [f"metric {name}" if name in {*columns, *parameters} else name for name in metrics]
    writer.writerow(["trial", *first, "state", *last, "host", "seconds"])
    for row in rows:
        values = [row["parameters"].get(name) for name in parameters], [row["metrics"].get(name) for name in metrics]
        writer.writerow([row["trial"], *values[0], row["state"], *values[1], row["host"], row["seconds"]])
    return text.getvalue()


def summarize_trials(rows: Sequence[Row]) -> str:
    """Return the first trial of a result in short, and how many have succeeded."""
    done = [row for row in rows if row["state"] == "succeeded"]
    counts = f"{len(done)} of {pluralize(len(rows), 'trial')} succeeded"
    return f"{counts}; trial:{done[0]['trial']}: {_describe(done[0])}" if done else counts


def format_trial(event: TrialEvent) -> str | None:
    """Format what has happened to a trial; None if it has just started."""
    if event.state == "running":
        return None
    parameters = " ".join(f"{name}={value}" for name, value in event.parameters.items())
    if event.problem is not None:
        end = "restarts" if event.state == "pending" else event.state
        return f"trial:{event.trial} ({parameters}) {end}: {event.problem}"
    metrics = " ".join(f"{name}={_format(value)}" for name, value in event.metrics.items())
    end = f": {metrics}" if metrics else ""
    return f"trial:{event.trial} ({parameters}) {event.state} after {format_duration(event.seconds)}{end}"


def _describe(row: Row) -> str:
    values = {**row["parameters"], **row["metrics"]}
    return " ".join(f"{name}={_format(value)}" for name, value in values.items())


def _names(rows: Sequence[Row], kind: str) -> list[str]:
    """Return the names of all parameters or metrics, in the order in which they appear."""
    return list(dict.fromkeys(name for row in rows for name in row[kind]))


def _values(values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [_format(values[name]) if name in values else "-" for name in names]


def _format(value: Any) -> str:
    if value is None:
        return "not finite"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
