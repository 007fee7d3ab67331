"""Notices of cluster events: their contents, as JSON and as environment variables of a command."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tfcluster.core.runs import exit_code

#: A notice, as a webhook and a command get it. `text` says it in a sentence, under the name that chats expect.
Notice = dict[str, Any]
# The environment variables of a command, and the keys of a notice that they have.
_VARIABLES = {
    "TFCLUSTER_CLUSTER": "cluster",
    "TFCLUSTER_NOTICE": "event",
    "TFCLUSTER_NOTICE_TEXT": "text",
    "TFCLUSTER_NOTICE_HOST": "host",
    "TFCLUSTER_NOTICE_TASK": "task",
    "TFCLUSTER_NOTICE_STATE": "state",
    "TFCLUSTER_NOTICE_EXIT_CODE": "exit_code",
    "TFCLUSTER_RUN": "run",
}


def run_notice(cluster: str, result: Mapping[str, Any]) -> Notice:
    """Return the notice of a run that has ended, from its result event."""
    run, state = result["run"], result["state"]
    names = ("run", "program", "state", "seconds", "result", "error")
    text = f"{run} {state} after {result['seconds']:.1f} s"
    if "error" in result:
        text += ": " + result["error"]["message"].partition("\n")[0]
    fields = {name: result.get(name) for name in names}
    return _notice("run-finished", f"{run}-finished", cluster, text, **fields, exit_code=int(exit_code(result)))


def task_notice(cluster: str, host: str, task: str, problem: str, failed_at: float) -> Notice:
    """Return the notice of a task that has failed and is not restarted; the problem includes the task's name."""
    return _notice("task-failed", f"{task}-failed-{failed_at}", cluster, problem, host=host, task=task)


def host_notice(cluster: str, host: str, seconds: float, since: float, reason: str) -> Notice:
    """Return the notice of a host none of whose tasks has answered for some seconds, since a Unix time."""
    text = f"host {host} has not answered for {seconds:g} s" + (f" ({reason})" if reason else "")
    return _notice("host-away", f"{host}-away-{since:.0f}", cluster, text, host=host)


def _notice(event: str, identity: str, cluster: str, text: str, **fields: Any) -> Notice:
    begin = {"event": event, "id": f"{cluster}-{identity}", "time": round(time.time(), 3), "cluster": cluster}
    return {**begin, "text": f"{cluster}: {text}", **fields}


def environment_of(notice: Notice) -> dict[str, str]:
    """Return the environment variables of a command that gets a notice."""
    return {name: str(notice[key]) for name, key in _VARIABLES.items() if notice.get(key) is not None}
