"""Format the result of a script as nothing: its output has been shown already."""

from __future__ import annotations

from typing import Any

from tfcluster.ui.console import Text


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """Return no lines, so that standard output contains the script's output only."""
    return []
