"""Format the result of the pi program as text."""

from __future__ import annotations

from typing import Any

from tfcluster.ui.console import Text
from tfcluster.ui.format import format_duration, format_rate


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """Format the result: the estimate with its standard error and interval, and the number of samples."""
    low, high = result["interval"]
    digits = max(2, _digits(result["stderr"]))
    return [
        Text.assemble(
            ("pi = ", "bold"),
            (f"{result['pi']:.{digits}f}", "bold green"),
            f" ± {result['stderr']:.{digits}f} (standard error), 95% interval {low:.{digits}f} to {high:.{digits}f}",
        ),
        Text(
            f"{result['inside']:,} of {result['samples']:,} random points in the unit square are inside "
            "the quarter circle"
        ),
        Text(f"{format_duration(seconds)}, {format_rate(result['samples_per_s'], 'samples')}, seed {result['seed']}"),
    ]


def _digits(error: float) -> int:
    """Return the number of decimal places to show of a value: one more than the first digit of its standard error."""
    from math import floor, log10

    return -floor(log10(error)) + 1 if error > 0 else 6
