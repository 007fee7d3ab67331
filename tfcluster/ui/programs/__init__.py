"""Format the results of the bundled programs, one module per program."""

from __future__ import annotations

import importlib
from typing import Any

from rich.console import RenderableType


def summary(event: dict[str, Any]) -> list[RenderableType]:
    """Format the result of a program.

    Args:
        event: The run's result event.

    Returns:
        The lines and tables to print.
    """
    lines: list[RenderableType] = importlib.import_module(f"tfcluster.ui.programs.{event['program']}").summary(
        event["result"], event["seconds"]
    )
    return lines
