"""Format the result of the expfit program as text, with its losses as a chart."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from tfcluster.core.text import pluralize
from tfcluster.ui.chart import draw_chart
from tfcluster.ui.console import Text, console, make_table
from tfcluster.ui.format import format_duration

_WIDTH = 76


def summary(result: dict[str, Any], seconds: float) -> list[RenderableType]:
    """Format the result: the loss and the time of each mode, and the chart of the losses."""
    modes = result.get("modes", [result])
    curves = {each["mode"]: each["curve"] for each in modes}
    target = console()
    width = min(_WIDTH, target.width)
    lines = draw_chart(curves, width=width, braille=target.encoding.startswith("utf"))
    return [
        _line(result) if len(modes) == 1 else _comparison(modes),
        Text(f"{format_duration(seconds)}, seed {result['seed']}"),
        *([Text(), *lines] if lines else []),
    ]


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
