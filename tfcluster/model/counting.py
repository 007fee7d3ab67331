"""Counts with their nouns."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 task, 3 tasks."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
