"""Dispatches the requests of commands to their handlers, by the type of the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcluster.agent.handlers.apply import ApplyHandler
from tfcluster.agent.handlers.connectivity import reach
from tfcluster.agent.handlers.logs import LogHandlers
from tfcluster.agent.handlers.runs import RunHandlers
from tfcluster.agent.handlers.tasks import TaskHandlers
from tfcluster.agent.shutdown import Shutdown
from tfcluster.agent.unreadable_cluster import UnreadableCluster
from tfcluster.agent.upload import Upload
from tfcluster.protocol.api import Method, Request, Response
from tfcluster.protocol.api.cluster import (
    ApplyRequest,
    DevicesRequest,
    DownRequest,
    ObserveRequest,
    PrepareRequest,
    ReachRequest,
    RestartRequest,
    StatusRequest,
    TopologyRequest,
    WatchRequest,
)
from tfcluster.protocol.api.logs import EventsRequest, LogsRequest
from tfcluster.protocol.api.runs import AttachRequest, CancelRequest, RunRequest, RunsRequest


class Dispatcher:
    """The handlers of all requests.

    Args:
        apply: The handlers of changes.
        tasks: The handlers of requests about tasks.
        runs: The handlers of requests about runs.
        logs: The handlers of requests for logs.
        shutdown: The handler of `down`.
        before_down: Called before each `down`; may set `unreadable`.

    Attributes:
        unreadable: Handles all requests if the journal is damaged or missing; otherwise None.
    """

    def __init__(
        self,
        apply: ApplyHandler,
        tasks: TaskHandlers,
        runs: RunHandlers,
        logs: LogHandlers,
        shutdown: Shutdown,
        before_down: Callable[[], None],
    ) -> None:
        self._before_down = before_down
        self.unreadable: UnreadableCluster | None = None
        self._runs = runs
        self._handlers: dict[type[Request[Any, Any]], Callable[[Any], Response[Any, Any]]] = {
            TopologyRequest: apply.topology,
            PrepareRequest: apply.prepare,
            ObserveRequest: apply.observe,
            ReachRequest: reach,
            ApplyRequest: apply.apply,
            WatchRequest: tasks.watch,
            StatusRequest: tasks.status,
            DevicesRequest: tasks.devices,
            RestartRequest: tasks.restart,
            DownRequest: shutdown.down,
            LogsRequest: logs.logs,
            EventsRequest: logs.events,
            RunsRequest: runs.runs,
            AttachRequest: runs.attach,
            CancelRequest: runs.cancel,
        }
        request_types: list[type[Request[Any, Any]]] = [*self._handlers, RunRequest]
        self._request_types = {kind.method: kind for kind in request_types}

    def request_type(self, method: Method) -> type[Request[Any, Any]]:
        """Return the class of the requests for a method."""
        return self._request_types[method]

    def respond(self, request: Request[Any, Any], upload: Upload) -> Response[Any, Any]:
        """Pass a request to its handler.

        Args:
            request: The request.
            upload: What the command sends after the request.

        Returns:
            The response. The caller closes it.

        Raises:
            ClusterError: During iteration: the request failed.
        """
        if isinstance(request, DownRequest):
            self._before_down()
        if self.unreadable is not None:
            return self.unreadable.down(request) if isinstance(request, DownRequest) else self.unreadable.refuse()
        if isinstance(request, RunRequest):
            return self._runs.run(request, upload)
        return self._handlers[type(request)](request)
