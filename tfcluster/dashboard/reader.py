"""What the link for readers shows: the owner's page without actions, logs and errors.

A program can print its environment: the variables of the spec, including secret ones, and those of the shell that has
started it. So readers get no output of programs, and no messages that can quote it: no logs, and no errors or notes of
runs. Details of events can quote command lines and errors too. What is not listed here is not shown: neither a new
request nor a new field of an answer.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from tfcluster.core.programs import SCRIPT
from tfcluster.dashboard.api import RequestError, Route, find_route
from tfcluster.dashboard.feed import Body
from tfcluster.errors import ClusterError
from tfcluster.ui.listings import format_metrics

#: What a reader may ask for.
READABLE = frozenset({Route.VIEW, Route.SAMPLES, Route.RUN})

_REFUSED = "this link is read-only: only the owner of the cluster can do that"
_NO_LOGS = (
    "This link is read-only. It shows no logs, and not why a run failed: "
    "what a program prints can contain its environment variables."
)
_AWAY, _DOWN = "it cannot be reached", "the cluster is down"

_VIEW = ("time", "measured")
_STATUS = ("cluster", "state")
_HOST = ("host", "state", "agent_pid", "tensorflow", "load")
_TASK = (
    *("task", "job", "index", "host", "state", "uptime_s", "restarts"),
    *("cpu_percent", "rss_bytes", "gpu_memory_bytes"),
)
_EXIT = ("reason", "time")
_RUN_STATUS = ("run", "seconds", "gpu_memory_bytes")
_RECORD = (
    *("run", "program", "script", "inputs", "state", "started", "ended", "seconds", "waited", "timeout"),
    *("progress", "metrics", "result"),
)
_ORIGIN = ("commit", "is_clean")
_EVENT = ("time", "task", "host", "event", "kind")
_RUN = ("run", "progress", "series", "is_complete")
_MEMBER = ("task", "host", "state", "attempt", "exit_code")
_TRIAL = ("trial", "parameters", "state", "metrics", "host", "seconds")


class PageApi(Protocol):
    """Answers the requests of pages, as `tfcluster.dashboard.api.Api` does."""

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any], tag: str = "") -> Any:
        """Answer a request."""


class Reader:
    """Answers the requests of readers, who know its `token`, from the answers that the owner would get."""

    def __init__(self, api: PageApi) -> None:
        self.token = secrets.token_urlsafe()
        self._api = api
        self._latest: tuple[str, Body] | None = None  # the tag of the owner's latest view, and that view for readers
        self._shown: frozenset[str] = frozenset()  # the runs in it, unless the cluster is down

    def check(self, method: str, path: str) -> Route:
        """Return the route of a request; raise RequestError unless a reader may ask for it."""
        route, _ = find_route(method, path)
        if route is None or route not in READABLE:
            raise RequestError(HTTPStatus.FORBIDDEN, _NO_LOGS if route is Route.LOGS else _REFUSED)
        return route

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any], tag: str = "") -> Any:
        """Answer a request as `Api.answer` does, if a reader may ask for it."""
        route = self.check(method, path)
        try:
            if route is Route.VIEW:
                return self._view(tag)
            if route is Route.RUN:
                self._check_shown(path)
            answer = self._api.answer(method, path, {}, {})
            return _show_run(answer) if route is Route.RUN else answer
        except ClusterError:  # its message can quote what a command has printed
            raise RequestError(HTTPStatus.BAD_GATEWAY, "the cluster does not answer") from None

    def _check_shown(self, path: str) -> None:
        """Raise RequestError unless a run is in the view: to look for another one could start agents."""
        self._view("")
        _, run = find_route("GET", path)
        if run not in self._shown:
            raise RequestError(HTTPStatus.NOT_FOUND, f"no run {run:.80} is shown")

    def _view(self, tag: str) -> Body | None:
        latest = self._latest
        known = latest[0] if latest is not None and latest[1].tag == tag else ""
        answer = self._api.answer("GET", "/api/view", {}, {}, known)
        if answer is None:
            return None
        body = Body.of(answer)
        if latest is None or latest[0] != body.tag:
            view = json.loads(body.data)
            self._shown = frozenset() if "" in view["problems"] else frozenset(run["run"] for run in view["runs"])
            latest = self._latest = body.tag, Body.of(_show_view(view))
        return latest[1]


def _pick(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _show_view(view: Mapping[str, Any]) -> dict[str, Any]:
    status = view["status"]
    return {
        **_pick(view, _VIEW),
        "status": {
            **_pick(status, _STATUS),
            "hosts": [_pick(host, _HOST) for host in status["hosts"]],
            "tasks": [_show_task(task) for task in status["tasks"]],
            "runs": [_pick(run, _RUN_STATUS) for run in status["runs"]],
        },
        "problems": {host: _AWAY if host else _DOWN for host in view["problems"]},
        "runs": [_show_record(run) for run in view["runs"]],
        "events": [{**_pick(event, _EVENT), "detail": ""} for event in view["events"]],
    }


def _show_task(task: Mapping[str, Any]) -> dict[str, Any]:
    last_exit = task["last_exit"]
    return {**_pick(task, _TASK), "last_exit": last_exit and _pick(last_exit, _EXIT)}


def _show_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run: its metrics in place of what it waits for, and no error."""
    parameters, origin = record["parameters"], record.get("origin")
    return {
        **_pick(record, _RECORD),
        "parameters": _pick(parameters, ["args"]) if record["program"] == SCRIPT else parameters,
        "origin": origin and _pick(origin, _ORIGIN),
        "error": None,
        "outcome": "" if record["error"] else record.get("outcome", ""),
        "activity": format_metrics(record.get("metrics", {})),
    }


def _show_run(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_pick(run, _RUN),
        "record": _show_record(run["record"]),
        "members": [_pick(member, _MEMBER) for member in run["members"]],
        "trials": [_pick(trial, _TRIAL) for trial in run["trials"]],
        "notes": [],
        "has_graph": False,
    }
