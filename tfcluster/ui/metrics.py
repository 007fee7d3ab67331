"""Collect the metrics of a run and format the latest ones, one line per reporter (such as a worker)."""

from __future__ import annotations

from typing import Any

from tfcluster.ui.format import rate

_PER_SECOND = "_per_s"


class Metrics:
    """Keeps the latest line of each reporter.

    The strings in a metric event identify the reporter, as {"worker": "worker:0"}; the numbers are its metrics.
    """

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}
        self._fresh: set[str] = set()

    def update(self, event: dict[str, Any]) -> None:
        """Add a metric event."""
        who = " ".join(value for name, value in event.items() if isinstance(value, str) and name != "event")
        self._lines[who] = "  ".join((who, *_values(event)))
        self._fresh.add(who)

    def latest(self) -> list[str]:
        """Return the latest line of every reporter."""
        return [self._lines[who] for who in sorted(self._lines)]

    def news(self) -> list[str]:
        """Return the lines that have changed since the last call."""
        lines = [self._lines[who] for who in sorted(self._fresh)]
        self._fresh.clear()
        return lines


def _values(event: dict[str, Any]) -> list[str]:
    words = []
    for name, value in event.items():
        if isinstance(value, str) or name == "seconds":
            continue
        if name.endswith(_PER_SECOND):
            words.append(rate(value, name.removesuffix(_PER_SECOND)))
        else:
            words.append(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.4g}")
    return words
