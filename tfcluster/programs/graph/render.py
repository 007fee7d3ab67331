"""Format the result of the graph program as text."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from tfcluster.ui.console import Text, make_table
from tfcluster.ui.format import format_duration


def summary(result: dict[str, Any], seconds: float) -> list[RenderableType]:
    """Format the result: the value, and a table of the device on which each name's operation ran."""
    rows = [(name, str(each["value"]), each["device"]) for name, each in result["operations"].items()]
    return [
        Text.assemble((f"{result['name']} = ", "bold"), (str(result["value"]), "bold green")),
        Text(f"{format_duration(seconds)}, in float64"),
        Text(),
        make_table(("OPERATION", "VALUE", "RAN ON"), rows, right=("VALUE",)),
    ]
