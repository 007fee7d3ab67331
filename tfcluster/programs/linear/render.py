"""Format the result of the linear program as text."""

from __future__ import annotations

from typing import Any

from tfcluster.core.text import pluralize
from tfcluster.ui.console import Text
from tfcluster.ui.format import format_duration, format_rate


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """Format the result: the fitted line, its loss, and the parameters of the training."""
    lines = [
        Text.assemble(
            ("y = ", "bold"),
            (_line(result), "bold green"),
            f", mean squared error {result['loss']:.4g}",
        )
    ]
    if result["least_squares"] is not None:
        lines.append(Text(f"least squares in closed form: y = {_line(result['least_squares'])}"))
    if result["evaluations"]:
        step, loss = result["evaluations"][-1]
        lines.append(Text(f"scored {len(result['evaluations']):,} times, last at step {step:,}: {loss:.4g}"))
    how = "in step" if result["sync"] else "asynchronously"
    lines.append(
        Text(
            f"{result['steps']:,} steps, {format_rate(result['examples_per_s'], 'examples')}, {result['optimizer']} "
            f"{result['lr']:g}, {pluralize(result['workers'], 'worker')} {how}, seed {result['seed']}, "
            f"{format_duration(seconds)}"
        )
    )
    return lines


def _line(values: dict[str, float]) -> str:
    """Format the right side of the line's equation: 2.006x + 0.175."""
    sign = "-" if values["b"] < 0 else "+"
    return f"{values['w']:.4g}x {sign} {abs(values['b']):.4g}"
