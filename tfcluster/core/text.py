"""Text formatting: pluralize counts and summarize long lists."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster import settings


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun in the singular or plural: 1 task, 3 tasks."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def summarize_list(names: Sequence[str]) -> str:
    """Summarize a list of names: the first four, and the number of the others."""
    more = f" and {len(names) - settings.LISTED_NAMES} more" if len(names) > settings.LISTED_NAMES else ""
    return ", ".join(names[: settings.LISTED_NAMES]) + more
