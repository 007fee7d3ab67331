"""What the page can ask for: the state as it changes, runs, logs and metrics; and to cancel a run or restart a task."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Generator
from http import HTTPStatus
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import Positions, read_logs
from tfcluster.client.restart import plan_restart, request_restart
from tfcluster.client.runs.runs import cancel_run, find_record
from tfcluster.client.status import collect_metrics
from tfcluster.core.log_levels import LogLevel, entry_level
from tfcluster.core.text import compile_patterns
from tfcluster.dashboard.feed import Cursor, Feed, Message, add_inputs
from tfcluster.dashboard.graph import placed_graph
from tfcluster.errors import ClusterError, ExitCode

#: Lists of messages, each with its kind; an empty one keeps the connection alive.
Stream = Generator[list[Message], None, None]
_RUN = re.compile(r"/api/runs/([^/]+)(/graph)?")


class RequestError(Exception):
    """A request that is refused, with a status of HTTP and a message for the user."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """Answers the requests of pages."""

    def __init__(self, cluster: Cluster, feed: Feed) -> None:
        self._cluster = cluster
        self._feed = feed

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Any:
        """Answer a request with a stream, text, or a value for JSON.

        Raises:
            RequestError: There is nothing at this path, or the request is wrong.
            ClusterError: The cluster could not do it.
        """
        if method == "GET" and (run := _RUN.fullmatch(path)):
            return self._show_run(run[1], has_graph=run[2] is not None)
        match method, path:
            case "GET", "/api/state":
                return self._follow_state()
            case "GET", "/api/logs":
                return self._read_logs(query)
            case "GET", "/metrics":
                return collect_metrics(self._cluster, settings.DASHBOARD_METRICS_SECONDS)[0]
            case "POST", "/api/cancel":
                return cancel_run(self._cluster, _text(body, "run"))
            case "POST", "/api/restart":
                return self._restart(body)
        raise RequestError(HTTPStatus.NOT_FOUND, f"not found: {path:.80}")

    def _follow_state(self) -> Stream:
        self._feed.count_pages(1)
        cursor = Cursor()
        try:
            while True:
                yield self._feed.wait(cursor, settings.DASHBOARD_REQUEST_SECONDS / 2)
        finally:
            self._feed.count_pages(-1)

    def _show_run(self, run: str, *, has_graph: bool) -> dict[str, Any]:
        try:
            record = find_record(self._cluster, run)  # first: nothing is kept of a run that does not exist
        except ClusterError as error:
            if error.exit_code is ExitCode.USAGE:
                raise RequestError(HTTPStatus.NOT_FOUND, error.message) from None
            raise
        history = self._feed.follow_run(record["run"])
        if has_graph:
            return {"dot": placed_graph(history)}
        return {**history.to_json(), "record": add_inputs(record)}

    def _read_logs(self, query: dict[str, str]) -> Stream:
        """Send the last lines of logs, then new ones, until the page is closed; an agent is asked for them by polling.

        Each line has the `level` of the entry that begins with it. With the option `level`, messages `hidden` have the
        number of entries below it. The options are checked before the first line, so that a wrong one is an answer and
        no broken stream.
        """
        tasks = [name for name in query.get("tasks", "").split(",") if name]
        grep = (query["grep"],) if query.get("grep") else ()
        compile_patterns(grep)
        since, until, level = _number(query, "since"), _number(query, "until"), _level(query)
        after: Positions = {}

        def stream() -> Stream:
            lines: int | None = settings.DASHBOARD_LINES
            known_since = since
            while True:
                hidden: list[int] = []
                read = read_logs(
                    self._cluster,
                    tasks,
                    lines=lines,
                    since=known_since,
                    until=until,
                    grep=grep,
                    after=after,
                    level=level,
                    on_hidden=hidden.append,
                )
                try:
                    batch = [{**line, "level": entry_level(line["line"])} for line in read]
                except ClusterError as error:
                    yield [("problem", error.message)]
                else:
                    messages: list[Message] = [("hidden", sum(hidden))] if hidden else []
                    yield [*messages, ("lines", batch)] if batch or lines else messages
                    known_since = batch[-1]["time"] if batch else known_since
                    lines = None if after else lines
                if until is not None:
                    yield [("end", None)]
                    return
                time.sleep(settings.DASHBOARD_LOG_SECONDS)

        return stream()

    def _restart(self, body: dict[str, Any]) -> dict[str, Any]:
        """Restart a task, if the page has said all that is lost by it; else return that."""
        task, accepted = _text(body, "task"), body.get("accepted")
        if not isinstance(accepted, (list, type(None))) or not all(isinstance(each, str) for each in accepted or ()):
            raise RequestError(HTTPStatus.BAD_REQUEST, "'accepted' is not a list of strings")
        restart, _ = plan_restart(self._cluster, [task])
        losses = list(restart.losses)
        if accepted is None or not set(losses) <= set(accepted):
            return {"restarts": False, "tasks": list(restart.tasks), "losses": losses}
        request_restart(self._cluster, restart.hosts, restart.tasks, settings.STOP_GRACE_SECONDS)
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


def _level(query: dict[str, str]) -> LogLevel | None:
    """Return the level from which on entries are wanted; None for all, as then the agent has nothing to search."""
    try:
        level = LogLevel(query.get("level") or LogLevel.INFO)
        return None if level is LogLevel.INFO else level
    except ValueError:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"'level' must be one of {', '.join(LogLevel)}") from None
