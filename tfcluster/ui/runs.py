"""The output of `tfcluster runs`: a table of runs, each with its inputs and its result in short."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcluster.core.programs import SCRIPT
from tfcluster.ui.console import console
from tfcluster.ui.format import duration
from tfcluster.ui.table import table

_VALUES_SHOWN = 3


def show_runs(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of runs."""
    rows = [
        (
            run["run"],
            run["state"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["started"])),
            duration(run["seconds"]),
            inputs(run["program"], run["parameters"]),
            outcome(run),
        )
        for run in runs
    ]
    columns = ("RUN", "STATE", "STARTED", "TIME", "INPUTS", "RESULT")
    console().print(table(columns, rows, right=("TIME",), wrapped=("INPUTS", "RESULT")))


def inputs(program: str, parameters: Mapping[str, Any]) -> str:
    """Format a run's inputs in short: `samples=10000000 seed=7`, or a script with its arguments as typed."""
    if program == SCRIPT:
        return " ".join((Path(parameters["path"]).name, *parameters["args"]))
    return _values(parameters)


def outcome(run: Mapping[str, Any]) -> str:
    """Format a run's outcome in short: the first values of its result, or the first line of its error."""
    if run["error"] is not None:
        return str(run["error"]["message"].partition("\n")[0])
    known = run["parameters"]
    return _values({name: value for name, value in (run["result"] or {}).items() if name not in known})


def _values(values: Mapping[str, Any]) -> str:
    """Format the first scalar values with their names."""
    plain = [(name, value) for name, value in values.items() if isinstance(value, int | float | str) and value != ""]
    return " ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in plain[:_VALUES_SHOWN]
    )
