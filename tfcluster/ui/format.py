"""Format numbers, durations, sizes, rates, device names and states for people."""

from __future__ import annotations

from typing import Any

from tfcluster.core.text import format_size

_STYLES = {
    "ready": "green",
    "running": "green",
    "up": "green",
    "ok": "green",
    "succeeded": "green",
    "starting": "yellow",
    "pending": "yellow",
    "queued": "yellow",
    "degraded": "yellow",
    "backing-off": "yellow",
    "stopping": "yellow",
    "unresponsive": "red",
    "unreachable": "red",
    "problem": "red",
    "note": "yellow",
    "failed": "bold red",
    "unreadable": "red",
    "stopped": "dim",
    "cancelled": "dim",
    "start": "green",
    "restart": "yellow",
    "stop": "red",
    "update": "cyan",
}


def style_of(state: str) -> str:
    """Return the rich style of a state."""
    return _STYLES.get(state, "")


def format_duration(seconds: float | None) -> str:
    """Format a duration in its two largest units: 3.1s, 2m 5s, 4h 10m, 3d 2h."""
    if seconds is None:
        return "-"
    if round(seconds, 1) < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes}m"
    return f"{hours // 24}d {hours % 24}h"


def format_bytes(size: int | None) -> str:
    """Format a number of bytes in the largest fitting binary unit: 97 MiB."""
    return "-" if size is None else format_size(size)


def format_rate(per_second: float, unit: str) -> str:
    """Format a rate with a metric prefix: 512 M samples/s."""
    value = per_second
    for prefix in ("", "k ", "M "):
        if round(value) < 1000:
            return f"{value:.3g} {prefix}{unit}/s"
        value /= 1000
    return f"{value:.3g} G {unit}/s"


def short_device(device: str) -> str:
    """Return a device's name within its task: CPU:0."""
    return device.rpartition("/device:")[2]


def format_optional(value: Any) -> str:
    """Format a value; None becomes a dash."""
    return "-" if value is None else str(value)
