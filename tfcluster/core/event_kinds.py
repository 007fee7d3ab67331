"""Which events of a cluster are good news, and which say that something went wrong: for colours, in every view."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """What an event means for the cluster."""

    GOOD = "good"
    BAD = "bad"
    PLAIN = "plain"


_KINDS = {
    EventKind.GOOD: ("adopted", "ready", "up"),
    EventKind.BAD: (
        *("blocked", "cleanup-failed", "died", "failed", "health-check-killed", "host-rebooted", "lease-expired"),
        *("network-lost", "unresponsive", "update-failed"),
    ),
}
_KIND_OF = {event: kind for kind, events in _KINDS.items() for event in events}


def event_kind(event: str) -> EventKind:
    """Return what an event means, by its name."""
    return _KIND_OF.get(event, EventKind.PLAIN)
