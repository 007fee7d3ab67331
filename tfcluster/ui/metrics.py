"""The latest metrics of everyone who reports some during a run, a line each."""

from __future__ import annotations

from typing import Any

from tfcluster.ui.format import rate

_PER_SECOND = "_per_s"


class Metrics:
    """Keeps the latest line of each reporter.

    Who reports is said by the strings in a metric event, as {"worker": "worker:0"}; numbers are what is reported.
    """

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}
        self._fresh: set[str] = set()

    def update(self, event: dict[str, Any]) -> None:
        """Take a metric event in."""
        who = " ".join(value for name, value in event.items() if isinstance(value, str) and name != "event")
        self._lines[who] = "  ".join((who, *_values(event)))
        self._fresh.add(who)

    def latest(self) -> list[str]:
        """The latest line of everyone."""
        return [self._lines[who] for who in sorted(self._lines)]

    def news(self) -> list[str]:
        """The lines that are new since they were last asked for."""
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
