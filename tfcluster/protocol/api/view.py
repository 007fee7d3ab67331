"""The method of an agent that views call once a second while somebody looks: it sends only what has changed."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NoReturn

from tfcluster.core.status import ClusterStatus
from tfcluster.core.usage import HostUsage
from tfcluster.protocol.api import Request
from tfcluster.protocol.api.logs import ClusterEvent
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.records import record_class


@record_class(frozen=True)
class RunReport:
    """What an active run has reported last."""

    run: str  # the run's id
    progress: dict[str, Any] | None = None  # `done`, `total`, `unit` and `seconds` of the latest event `progress`
    metrics: dict[str, float | None] = field(default_factory=dict)  # the latest value of each; None if not finite
    step: int | None = None  # the latest step of a metric
    wait: dict[str, Any] | None = None  # the event `waiting` while the run waits for tasks


@record_class(frozen=True)
class ViewReply:
    """The reply to `ViewRequest`; a part that the caller has already is None."""

    versions: dict[str, str]  # of the parts `status`, `runs` and `reports`
    generation: int  # of the topology
    status: ClusterStatus | None  # of this host alone
    usage: HostUsage | None  # comes with `status`
    runs: tuple[RunSummary, ...] | None  # the latest runs, the oldest first
    reports: tuple[RunReport, ...] | None  # of the active runs
    events: tuple[ClusterEvent, ...]  # those after the position of the request, the oldest first
    after: int  # the position after them


@record_class(frozen=True)
class ViewRequest(Request[NoReturn, ViewReply], method="view"):
    """Return the present state of the host; what it uses is measured at an interval while somebody asks."""

    known: dict[str, str]  # the version of each part that the caller has
    after: int | None  # the position in the log of events; None for the latest ones
