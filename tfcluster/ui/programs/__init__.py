"""The result of each bundled program in words, a file for each program."""

from __future__ import annotations

import importlib
from typing import Any

from rich.console import RenderableType


def summary(event: dict[str, Any]) -> list[RenderableType]:
    """What says what a program found: lines, tables.

    Args:
        event: The run's result event.
    """
    lines: list[RenderableType] = importlib.import_module(f"tfcluster.ui.programs.{event['program']}").summary(
        event["result"], event["seconds"]
    )
    return lines
