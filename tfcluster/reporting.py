"""The metrics that a script reports with `tfcluster.metric`: what may be reported, and how many points are kept."""

from __future__ import annotations

import math
import operator
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex

from tfcluster import settings

Event = dict[str, Any]
_STEP_MAX = 2**53 - 1  # the integers of JSON in browsers


@dataclass
class _Series:
    """The values that were reported under one name, or under one series of it."""

    began_at: float  # when the first one was reported, in monotonic seconds
    sent_at: float = -math.inf  # the last one
    count: int = 0  # of values sent
    pending: Event | None = None  # the latest value if it was not sent, as the event that has it


class MetricReporter:
    """Sends a script's metrics, and of long series only some points. Thread-safe.

    The first points of a series are all sent. After them the time between two points is a fixed part of the time since
    the first one, so that the points of a run of days grow with the logarithm of its length. `send` returns whether an
    event was sent; its second argument is whether it may wait.
    """

    def __init__(self, send: Callable[[Event, bool], bool]) -> None:
        self._send = send
        self._began_at = time.monotonic()
        self._series: dict[tuple[str, str | None], _Series] = {}
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Forget what other threads do: a child that was forked does not have them."""
        self._lock = threading.RLock()  # a signal handler may report while it interrupts a report of the same thread
        self._is_sending = False

    def report(self, name: str, value: float | None, step: int, series: str | None = None) -> None:
        """Report a value; see `tfcluster.metric`. Raises ValueError if there are too many names."""
        now, point = time.monotonic(), {"name": name, "value": value, "step": step}
        with self._lock:
            kept = self._series_of(name, series, now)
            label = {} if series is None else {"series": series}
            kept.pending = {"event": "metric", **label, **point, "seconds": round(now - self._began_at, 3)}
            interval = (now - kept.began_at) / settings.METRIC_POINTS
            if kept.count < settings.METRIC_POINTS or now - kept.sent_at >= interval:
                self._send_pending(kept, now, may_wait=False)

    def _series_of(self, name: str, series: str | None, now: float) -> _Series:
        if (name, series) not in self._series:
            names = {each for each, _ in self._series}
            if name not in names and len(names) >= settings.METRIC_NAMES_MAX:
                raise ValueError(
                    f"tfcluster.metric: {name!r} is one name too many: a run has at most {settings.METRIC_NAMES_MAX}"
                )
            if len(self._series) >= settings.METRIC_SERIES_MAX:
                raise ValueError(
                    f"tfcluster.metric: {series!r} is one series too many: a run has at most "
                    f"{settings.METRIC_SERIES_MAX} of all names"
                )
            self._series[name, series] = _Series(now)
        return self._series[name, series]

    def flush(self) -> None:
        """Send the latest point of each series, unless it was sent; wait until they are."""
        with self._lock:
            for series in [*self._series.values()]:
                self._send_pending(series, time.monotonic(), may_wait=True)

    def _send_pending(self, series: _Series, now: float, *, may_wait: bool) -> None:
        pending = series.pending
        if pending is None or self._is_sending:  # what a signal handler reports then is sent by a later report or flush
            return
        self._is_sending = True
        try:
            is_sent = self._send(pending, may_wait)
        finally:
            self._is_sending = False
        if is_sent:
            series.pending = series.pending if series.pending is not pending else None
            series.sent_at = now
            series.count += 1


_reporters: list[MetricReporter] = []


def set_reporter(reporter: MetricReporter) -> None:
    """Set the reporter of this process's metrics."""
    _reporters[:] = [reporter]


def stop_reporting() -> None:
    """Send what is pending, and report nothing more: what other threads report would be in the way of the end."""
    while _reporters:
        _reporters.pop().flush()


def report(name: str, value: SupportsFloat, step: SupportsIndex, series: str | None) -> None:
    """Report a value; see `tfcluster.metric`. Raises ValueError if there are too many names."""
    checked = (_check_name(name), _check_value(name, value), _check_step(name, step))
    label = None if series is None else _check_name(series, "series")
    if _reporters:
        _reporters[0].report(*checked, label)


def _check_name(name: object, what: str = "name") -> str:
    if not isinstance(name, str):
        raise TypeError(f"tfcluster.metric: the {what} must be a string, not {name!r:.60}")
    if not (name.strip() == name != "" and name.isprintable() and len(name) <= settings.METRIC_NAME_MAX_CHARS):
        raise ValueError(
            f"tfcluster.metric: {name!r:.60} is not a name: a name has 1 to {settings.METRIC_NAME_MAX_CHARS} printable "
            "characters, and no space before or after them"
        )
    return name


def _check_value(name: str, value: Any) -> float | None:
    """Return a value as a number, or None for NaN and infinities, which JSON does not have."""
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None
    except (TypeError, ValueError):
        raise TypeError(f"tfcluster.metric: the value of {name!r} must be one number, not {value!r:.60}") from None
    return number if math.isfinite(number) else None


def _check_step(name: str, step: Any) -> int:
    try:
        if isinstance(step, bool):
            raise TypeError
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"tfcluster.metric: the step of {name!r} must be an integer, not {step!r:.60}") from None
    if not 0 <= number <= _STEP_MAX:
        raise ValueError(f"tfcluster.metric: the step of {name!r} must be at least 0 and below 2^53")
    return number
