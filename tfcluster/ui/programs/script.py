"""The result of a script: what it printed has been shown, and there is no more to say."""

from __future__ import annotations

from typing import Any

from tfcluster.ui.text import Text


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """No lines: standard output is the script's.

    Args:
        result: The result.
        seconds: How long the run took.
    """
    return []
