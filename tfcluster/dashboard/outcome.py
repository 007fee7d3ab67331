"""What a run was given and has come to, as one line each."""

from __future__ import annotations

from typing import Any

from tfcluster.ui.console import Text
from tfcluster.ui.listings import format_inputs, format_outcome
from tfcluster.ui.run_view import render_result


def describe_outcome(record: dict[str, Any]) -> str:
    """Describe a run that has ended: `pi = 3.1416 ± 0.0005`, a script's last metrics, or the error's first line."""
    if record["error"] is not None or record["program"] == "script" or not record["result"]:
        return format_outcome(record)
    first = next(iter(render_result(record)), "")
    return str(first) if isinstance(first, (str, Text)) else format_outcome(record)


def add_inputs(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run with its `inputs` in short."""
    return {**record, "inputs": format_inputs(record["program"], record["parameters"])}
