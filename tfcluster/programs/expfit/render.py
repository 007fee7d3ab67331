"""Format the result of the expfit program as text, with a table of its losses."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from rich.console import RenderableType

from tfcluster.core.text import pluralize
from tfcluster.ui.console import Text, make_table
from tfcluster.ui.format import format_duration


def summary(result: dict[str, Any], seconds: float) -> list[RenderableType]:
    """Format the result: the loss and the time of each mode, and a table of the losses."""
    modes = result.get("modes", [result])
    return [
        _line(result) if len(modes) == 1 else _comparison(modes),
        Text(f"{format_duration(seconds)}, seed {result['seed']}"),
        Text(),
        _losses(modes),
    ]


def _losses(modes: list[dict[str, Any]]) -> RenderableType:
    """Return a table of the losses of each mode at steps 1, 2, 5, 10, 20, … and the last one.

    The curve of a long training has only some of the steps; the next one that it has is shown.
    """
    steps = [int(step) for step, _ in modes[0]["curve"]]
    wanted = [factor * 10**power for power in range(len(str(steps[-1]))) for factor in (1, 2, 5)]
    shown = sorted({steps[bisect_left(steps, each)] for each in wanted if each < steps[-1]} | {steps[-1]})
    losses = [dict(each["curve"]) for each in modes]
    columns = ("STEP", *(["LOSS"] if len(modes) == 1 else [each["mode"].upper() for each in modes]))
    return make_table(
        columns, [(f"{step:,}", *(f"{each[step]:.3g}" for each in losses)) for step in shown], right=columns
    )


def _line(result: dict[str, Any]) -> Text:
    return Text.assemble(
        ("loss ", "bold"),
        (f"{result['loss']:.3g}", "bold green"),
        f" after {pluralize(result['steps'], 'step')} ({result['mode']}), ",
        f"no further than {result['max_error']:.2g} from e^x between -1 and 1",
    )


def _comparison(modes: list[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            each["mode"],
            f"{each['loss']:.6g}",
            f"{each['max_error']:.2g}",
            f"{each['steps']:,}",
            format_duration(each["seconds"]),
            f"{each['steps_per_s']:,.0f}",
        )
        for each in modes
    ]
    columns = ("MODE", "LOSS", "MAX ERROR", "STEPS", "TIME", "STEPS/S")
    return make_table(columns, rows, right=columns[1:])
