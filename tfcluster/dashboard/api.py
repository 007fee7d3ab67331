"""What the page can ask for: the view of the cluster, runs, logs and metrics; and to cancel a run or restart a task."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import deque
from enum import Enum
from http import HTTPStatus
from typing import Any

from tfcluster import settings
from tfcluster.client.logs import read_logs
from tfcluster.client.restart import plan_restart, request_restart
from tfcluster.client.runs.requests import cancel_run, find_record
from tfcluster.client.status import collect_metrics
from tfcluster.core.log_levels import LogLevel, entry_level
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.core.text import compile_patterns
from tfcluster.dashboard.feed import Body, Feed, add_inputs
from tfcluster.dashboard.graph import placed_graph
from tfcluster.errors import ClusterError, ExitCode


class Route(Enum):
    """A request that is answered: its method and its path, in which RUN stands for a run."""

    VIEW = "GET /api/view"
    SAMPLES = "GET /api/samples"
    RUN = "GET /api/runs/RUN"
    GRAPH = "GET /api/runs/RUN/graph"
    LOGS = "GET /api/logs"
    METRICS = "GET /metrics"
    CANCEL = "POST /api/cancel"
    RESTART = "POST /api/restart"


_ROUTES = [(route, re.compile(re.escape(route.value).replace("RUN", "([^/]+)"))) for route in Route]


def find_route(method: str, path: str) -> tuple[Route | None, str]:
    """Return the route of a request, None if there is none, and the run that its path names, if any."""
    for route, pattern in _ROUTES:
        if found := pattern.fullmatch(f"{method} {path}"):
            return route, "".join(found.groups())
    return None, ""


class RequestError(Exception):
    """A request that is refused, with a status of HTTP and a message for the user."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """Answers the requests of pages."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ended: dict[str, dict[str, Any]] = {}  # the records of the latest runs that were asked for and have ended

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any], tag: str = "") -> Any:
        """Answer a request with text, a `Body`, a value for JSON, or None if the page has the newest answer.

        `tag` is that of the answer that the page has.

        Raises:
            RequestError: There is nothing at this path, or the request is wrong.
            ClusterError: The cluster could not do it.
        """
        route, run = find_route(method, path)
        match route:
            case Route.VIEW:
                return self._view(tag)
            case Route.SAMPLES:
                return self._feed.samples()
            case Route.RUN | Route.GRAPH:
                return self._show_run(run, has_graph=route is Route.GRAPH)
            case Route.LOGS:
                return self._read_logs(query)
            case Route.METRICS:
                return collect_metrics(self._feed.cluster, settings.DASHBOARD_METRICS_SECONDS)[0]
            case Route.CANCEL:
                return cancel_run(self._feed.cluster, _text(body, "run"))
            case Route.RESTART:
                return self._restart(body)
            case None:
                raise RequestError(HTTPStatus.NOT_FOUND, f"not found: {path:.80}")

    def _view(self, tag: str) -> Body | None:
        body = self._feed.wait(tag, settings.DASHBOARD_VIEW_SECONDS)
        if body is None and not tag:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "no host of the cluster has answered yet")
        return body

    def _show_run(self, run: str, *, has_graph: bool) -> dict[str, Any]:
        record = self._ended.get(run)  # else an agent would be started again and again if the cluster is down
        if record is None:
            try:
                record = find_record(self._feed.cluster, run)  # first: nothing is kept of a run that does not exist
            except ClusterError as error:
                if error.exit_code is ExitCode.USAGE:
                    raise RequestError(HTTPStatus.NOT_FOUND, error.message) from None
                raise
            if record["state"] not in ACTIVE_RUN_STATES and record["run"] == run:
                self._ended = dict([*self._ended.items(), (run, record)][-settings.LIVE_HISTORIES :])
        history = self._feed.runs.follow(record["run"])
        if has_graph:
            return {"dot": placed_graph(history)}
        record = add_inputs(record)
        if record["state"] in ACTIVE_RUN_STATES:
            record["seconds"] = None  # the view has them, and without them the answer is the same while nothing happens
        return {**history.to_json(), "record": record}

    def _read_logs(self, query: dict[str, str]) -> dict[str, Any]:
        """Return the last lines of logs, or those after the position `after` of an earlier answer.

        Each line has the `level` of the entry that begins with it, and `hidden` is the number of entries below the
        level of the request. Of very many lines the first ones are omitted. The page asks again after `pause` seconds.
        """
        tasks = [name for name in query.get("tasks", "").split(",") if name]
        grep = (query["grep"],) if query.get("grep") else ()
        compile_patterns(grep)
        since, until, level = _number(query, "since"), _number(query, "until"), _level(query)
        position = _position(query)
        after, hidden, problem = position.get("logs", {}), [0], None
        count, batch = 0, deque[dict[str, Any]](maxlen=settings.DASHBOARD_LINES_MAX)
        is_quiet = self._feed.is_quiet(tasks)  # before they are read, so that the last lines are not missed
        try:
            lines = read_logs(
                self._feed.cluster,
                tasks,
                lines=None if after else settings.DASHBOARD_LINES,
                since=position.get("since", since),
                until=until,
                grep=grep,
                after=after,
                level=level,
                on_hidden=hidden.append,
            )
            for line in lines:
                count += 1
                batch.append({**line, "level": entry_level(line["line"])})
        except ClusterError as error:
            if error.exit_code is ExitCode.USAGE:
                raise
            problem = error.message
        known_since = {"since": batch[-1]["time"]} if batch else {}
        return {
            "lines": list(batch),
            "omitted": count - len(batch),
            "hidden": sum(hidden),
            "after": json.dumps({**position, "logs": after, **known_since}),
            "problem": problem,
            "pause": settings.DASHBOARD_QUIET_SECONDS if is_quiet and not batch else settings.DASHBOARD_LOG_SECONDS,
            "end": until is not None,
        }

    def _restart(self, body: dict[str, Any]) -> dict[str, Any]:
        """Restart a task, if the page has said all that is lost by it; else return that."""
        task, accepted = _text(body, "task"), body.get("accepted")
        if not isinstance(accepted, (list, type(None))) or not all(isinstance(each, str) for each in accepted or ()):
            raise RequestError(HTTPStatus.BAD_REQUEST, "'accepted' is not a list of strings")
        restart, _ = plan_restart(self._feed.cluster, [task])
        losses = list(restart.losses)
        if accepted is None or not set(losses) <= set(accepted):
            return {"restarts": False, "tasks": list(restart.tasks), "losses": losses}
        request_restart(self._feed.cluster, restart.hosts, restart.tasks, settings.STOP_GRACE_SECONDS)
        return {"restarts": True, "tasks": list(restart.tasks), "losses": losses}


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{name!r} is missing")
    return value


def _number(query: dict[str, str], name: str) -> float | None:
    with contextlib.suppress(ValueError):
        number = float(query[name]) if query.get(name) else None
        if number is None or math.isfinite(number):
            return number
    raise RequestError(HTTPStatus.BAD_REQUEST, f"{name!r} is not a time")


def _position(query: dict[str, str]) -> dict[str, Any]:
    """Return where an earlier answer about logs has ended; empty for the first one."""
    with contextlib.suppress(AttributeError, KeyError, RecursionError, ValueError):
        position = json.loads(query.get("after") or "{}")
        if position == {}:
            return {}
        since, logs = position.get("since"), position["logs"]
        offsets = [offset for of_host in logs.values() for offset in of_host.values()]
        if isinstance(since, int | float | None) and all(type(offset) is int for offset in offsets):
            return {"logs": logs} if since is None else {"logs": logs, "since": since}
    raise RequestError(HTTPStatus.BAD_REQUEST, "'after' is not that of an earlier answer")


def _level(query: dict[str, str]) -> LogLevel | None:
    """Return the level from which on entries are wanted; None for all, as then the agent has nothing to search."""
    try:
        level = LogLevel(query.get("level") or LogLevel.INFO)
        return None if level is LogLevel.INFO else level
    except ValueError:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"'level' must be one of {', '.join(LogLevel)}") from None
