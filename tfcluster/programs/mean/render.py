"""Format the result of the mean program as text."""

from __future__ import annotations

from typing import Any

from tfcluster.core.text import pluralize
from tfcluster.core.topology import short_task_name
from tfcluster.programs import settings
from tfcluster.ui.console import Text
from tfcluster.ui.format import format_duration, format_rate


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """Format the result: the mean, the variance, and the mean of each slice."""
    count, shards = result["count"], result["shards"]
    shown = [
        Text(f"  {short_task_name(shard['task'])}: {_number(shard['mean'])} of {pluralize(shard['count'], 'number')}")
        for shard in shards[: settings.MEAN_SHARDS]
    ]
    if len(shards) > settings.MEAN_SHARDS:
        shown.append(Text(f"  and {len(shards) - settings.MEAN_SHARDS:,} more, which -o json shows"))
    return [
        Text.assemble(
            ("mean = ", "bold"),
            (_number(result["mean"]), "bold green"),
            f", variance {_number(result['variance'])} (the population's), of {pluralize(count, 'number')}",
        ),
        Text(f"{format_duration(seconds)}, {format_rate(count / seconds if seconds else 0.0, 'numbers')}"),
        Text(f"{pluralize(len(shards), 'slice')}, mean{'' if len(shards) == 1 else 's'}:"),
        *shown,
    ]


def _number(value: float | None) -> str:
    """Format a number with all the digits that distinguish it; None, which a note explains, as not finite."""
    return "not finite" if value is None else repr(value)
