"""The result of each bundled program in words, a file for each program."""

from __future__ import annotations

import importlib
from typing import Any

from rich.text import Text


def summary(event: dict[str, Any]) -> list[Text]:
    """The lines that say what a program found.

    Args:
        event: The run's result event.
    """
    lines: list[Text] = importlib.import_module(f"tfcluster.render.programs.{event['program']}").summary(
        event["result"], event["seconds"]
    )
    return lines
