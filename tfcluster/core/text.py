"""Counts with their nouns, and lists that stay short."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 4


def pluralize(count: int, noun: str) -> str:
    """A count with its noun: 1 task, 3 tasks."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def some(names: Sequence[str]) -> str:
    """Names in a list that stays short: the first four, and how many more."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
