"""The latest metrics that the processes of a run have reported, which become part of its result, however it ends."""

from __future__ import annotations

from typing import Any

from tfcluster.protocol.codec import Message


class LatestMetrics:
    """Keeps the latest value of each metric that the processes of a run have reported."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def add(self, event: Message) -> None:
        """Keep the value of an event, if it is a metric; one that a member of a group has reported, by its task."""
        if event["event"] == "metric":
            values = self._values.setdefault(event["task"], {}) if "task" in event else self._values
            values[event["name"]] = event["value"]

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()

    def as_result(self) -> dict[str, Any]:
        """Return the field of a run's result that has the metrics; empty if none was reported."""
        return {"metrics": self._values} if self._values else {}

    def stop_event(self) -> Message:
        """Return the last event of a run that is being stopped: the agent, which knows why, writes its result."""
        return {"event": "stopped", "result": self.as_result() or None}
