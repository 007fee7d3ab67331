"""The latest metrics that the processes of a run have reported, which become part of its result, however it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfcluster.core.run_events import StoppedEvent
from tfcluster.protocol.codec import Message


class LatestMetrics:
    """Keeps the latest value of each metric that the processes of a run have reported.

    `tasks` are those of a group's members, in the order of the result; none for a run of one process.
    """

    def __init__(self, tasks: Iterable[str] = ()) -> None:
        self._values: dict[str, Any] = {task: {} for task in tasks}

    def add(self, event: Message) -> None:
        """Keep the value of an event, if it is a metric; one that a member of a group has reported, by its task."""
        if event["event"] == "metric":
            values = self._values[event["task"]] if "task" in event else self._values
            values[event["name"]] = event["value"]

    def as_result(self) -> dict[str, Any]:
        """Return the field of a run's result that has the metrics; empty if none was reported."""
        values = {name: value for name, value in self._values.items() if value != {}}
        return {"metrics": values} if values else {}

    def stop_event(self) -> StoppedEvent:
        """Return the last event of a run that is being stopped: the agent, which knows why, writes its result."""
        return StoppedEvent(self.as_result() or None)
