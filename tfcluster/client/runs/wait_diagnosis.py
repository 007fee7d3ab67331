"""Find out why a command waits for tasks: what their hosts say of them, and what they print.

The agent that leads a run cannot tell what is wrong on other hosts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster, recorded_spec
from tfcluster.client.rpc.parallel import StreamContext, map_hosts
from tfcluster.core.hints import complete_commands
from tfcluster.core.stacks import describe_wait
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import StatusRequest
from tfcluster.protocol.api.logs import LogEvent, LogLine, LogsRequest
from tfcluster.protocol.api.processes import TaskThreadsReply, TaskThreadsRequest

Event = dict[str, Any]
# What a host tells: its TensorFlow, and what each task does that seems to be at fault, by the task's name.
_Answer = tuple[str | None, dict[str, TaskThreadsReply]]


def ask_hosts(cluster: Cluster, event: Event) -> Event:
    """Return an event of a script that waits, with what the tasks' own hosts say of them, and other TensorFlows.

    The event is as the agent that leads the run has written it.
    """
    problems: list[Event] = event["problems"]

    def ask(host: str) -> _Answer:
        client = cluster.connect(host)
        tasks = [each["task"] for each in problems if each["host"] == host and each["task"]]
        replies = {task: client.call(TaskThreadsRequest(task)) for task in tasks if host != cluster.head}
        return client.call(StatusRequest()).status.hosts[0].tensorflow, replies

    answers, errors = map_hosts(cluster.hosts, ask, settings.WAIT_HOSTS_SECONDS)
    explained = [_explain(each, cluster.head, answers, errors) for each in problems] + _other_versions(cluster, answers)
    spec = recorded_spec(cluster.name) or ""
    explained = [{**each, "hint": complete_commands(each["hint"], cluster.name, spec)} for each in explained]
    message = describe_wait(event["call"], event["file"], event["line"], [each["problem"] for each in explained])
    return {**event, "message": message, "problems": explained}


def add_logs(cluster: Cluster, event: Event) -> Event:
    """Return an event of a script that waits, with the last lines of the logs of the tasks that it waits for."""
    problems: list[Event] = event["problems"]
    hosts = {each["task"]: each["host"] for each in problems if each["task"] and each["host"] in cluster.hosts}

    def read(task: str) -> tuple[str, list[str]]:
        request = LogsRequest((task,), settings.FAILED_TASK_LOG_LINES, None, follow=False, after={})
        with contextlib.closing(cluster.connect(hosts[task]).stream(request)) as parts:
            lines = [part.line for part in parts if isinstance(part, LogEvent)]
        return (lines[0].task if lines else task), [line.line for line in lines]

    replies, _ = map_hosts(hosts, read, settings.WAIT_HOSTS_SECONDS)
    return {**event, "logs": {short: lines for short, lines in replies.values() if lines}}


def follow_late_tasks(
    cluster: Cluster, host: str, late_tasks: Callable[[], Collection[str]], context: StreamContext
) -> Iterator[LogLine]:
    """Follow the logs of the tasks on a host that are still not ready after some seconds, for a command that waits.

    Yields:
        The last lines of the tasks' logs, then what they print from now on, until the agent or the connection ends.
    """
    while True:
        context.sleep(settings.LATE_TASK_SECONDS)
        if names := tuple(late_tasks()):
            break
    request = LogsRequest(names, settings.FAILED_TASK_LOG_LINES, None, follow=True, after={})
    with contextlib.suppress(ClusterError), contextlib.closing(cluster.connect(host).stream(request)) as stream:
        for event in context.events(stream):  # the watch tells what is wrong
            if isinstance(event, LogEvent):
                yield event.line


def _explain(problem: Event, head: str, answers: dict[str, _Answer], errors: dict[str, ClusterError]) -> Event:
    """Return a problem with what the host of the task says of it."""
    host = problem["host"]
    if host in errors:
        return {**problem, "problem": f"{problem['problem']} ({errors[host].message})"}
    reply = answers[host][1].get(problem["task"]) if host in answers else None
    if reply is None:
        return problem
    if reply.problem:
        return {**problem, "problem": reply.problem, "hint": reply.hint}
    text = f"{problem['problem']}, although it answers on {host}"
    return {**problem, "problem": text, "hint": f"Let {head} connect to it; `tfcluster doctor` checks the connections."}


def _other_versions(cluster: Cluster, answers: dict[str, _Answer]) -> list[Event]:
    """Return a problem for each host that has another TensorFlow than the one that leads the run."""
    own = answers[cluster.head][0] if cluster.head in answers else None
    others = {host: version for host, (version, _) in answers.items() if None not in (own, version) and version != own}
    return [
        {
            "problem": f"host {host} runs TensorFlow {version}, {cluster.head} {own}",
            "hint": f"Install the same version everywhere (`pip install tensorflow=={own}`), and restart the cluster.",
            "task": "",
            "host": host,
        }
        for host, version in others.items()
    ]
