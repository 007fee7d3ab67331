"""What an agent tells a view: only the parts that have changed, and of a run's reports only the new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.agent.hosts import run_request, task_of, topology_of
from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.agent.runs.reports import ReportReader, read_latest_metrics
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.core.states import RunState, TaskState
from tfcluster.protocol.api.cluster import RestartRequest
from tfcluster.protocol.api.runs import CancelRequest, RunsRequest
from tfcluster.protocol.api.view import RunReport, ViewReply, ViewRequest

TOPOLOGY = topology_of([task_of("worker:0", "a")], names="a")


def ask_until(client: AgentClient, known: ViewReply, is_there: Any) -> ViewReply:
    """Ask for what is new until a reply has it."""
    replies: list[ViewReply] = []

    def ask() -> bool:
        last = replies[-1] if replies else known
        replies.append(client.call(ViewRequest(last.versions, last.after)))
        return bool(is_there(replies[-1]))

    wait_for(ask)
    return replies[-1]


def submit(client: AgentClient, script: Path) -> str:
    """Submit a run of a script, which continues without this command, and return its id."""
    path, folder = str(script), str(script.parent)
    parameters: dict[str, Any] = {"args": [], "path": path, "argument": path, "cwd": folder, "seed": None}
    request = run_request("script", parameters, upload=path, upload_name=script.name, cancel_on_disconnect=False)
    run = client.stream(request)
    identity = str(next(run).record["run"])
    with script.open("rb") as file:
        run.send_file(file)
    next(run)  # the agent has the file
    run.close()
    return identity


def test_a_part_is_sent_when_it_is_new_and_not_again(client: AgentClient) -> None:
    whole = client.call(ViewRequest({}, None))
    assert whole.status is not None
    assert whole.status.tasks[0].short == "worker:0"
    assert whole.usage is not None
    assert "/job:worker/task:0" in whole.usage.tasks
    assert whole.runs is not None
    assert whole.reports == ()
    assert {event.event for event in whole.events} >= {"up", "started"}
    ready = ask_until(client, whole, lambda reply: reply.status and reply.status.tasks[0].state is TaskState.READY)
    same = ask_until(client, ready, lambda reply: reply.status is None)
    assert (same.usage, same.runs, same.reports, same.events) == (None, None, None, ())
    assert same.generation == whole.generation

    client.call(RestartRequest((), 1.0))
    stopping = ask_until(client, same, lambda reply: reply.events)
    assert stopping.events[0].event == "stopping"
    assert stopping.runs is None, "the runs are as before"
    ask_until(client, stopping, lambda reply: any(event.event == "ready" for event in reply.events))
    assert len(client.call(ViewRequest({}, None)).events) > len(whole.events), "without a position, all of them"
    assert client.call(ViewRequest({}, 10**9)).events == (), "a position in a log that was deleted"


def test_what_a_run_reports_comes_while_it_runs(client: AgentClient, tmp_path: Path) -> None:
    flag, script = tmp_path / "go", tmp_path / "train.py"
    script.write_text(
        "import os, time, tfcluster\n"
        "tfcluster.metric('loss', 0.5, 3)\n"
        f"while not os.path.exists({str(flag)!r}): time.sleep(0.05)\n"
        "tfcluster.metric('loss', 0.25, 4)\ntfcluster.progress(1, 2, 'epochs')\ntime.sleep(600)\n"
    )
    before = client.call(ViewRequest({}, None))
    identity = submit(client, script)
    first = ask_until(client, before, lambda reply: reply.reports and reply.reports[0].metrics)
    assert first.reports == (RunReport(identity, metrics={"loss": 0.5}, step=3),)
    flag.touch()

    # They come by two ways, so either can be the first one.
    def has_both(reply: ViewReply) -> bool:
        return any(each.progress and each.step == 4 for each in reply.reports or ())

    second = ask_until(client, first, has_both)
    assert second.reports is not None
    assert second.reports[0].metrics == {"loss": 0.25}
    assert second.reports[0].progress is not None
    assert {**second.reports[0].progress, "seconds": 0} == {"done": 1, "total": 2, "unit": "epochs", "seconds": 0}
    client.call(CancelRequest(identity))
    ended = ask_until(client, second, lambda reply: reply.runs and reply.runs[-1].state is RunState.CANCELLED)
    assert ended.reports == ()


def append(path: Path, *events: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def read(reader: ReportReader) -> RunReport:
    while reader.read_block():
        pass
    return reader.report


def test_what_is_new_in_a_file_of_events_is_read_and_nothing_is_skipped(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    reader = ReportReader("train-1", events)
    assert read(reader) == RunReport("train-1")
    append(events, {"event": "run"}, {"event": "progress", "done": 1})  # not a whole event of ours
    append(events, {"event": "waiting", "call": "Session.run", "problems": []})
    waiting = read(reader)
    assert waiting.wait is not None
    assert waiting.progress is None
    with events.open("a") as file:
        file.write('{"event": "metric", "name": "accuracy", "va')  # the rest follows
    assert read(reader) == waiting
    with events.open("a") as file:
        file.write('lue": 0.5, "step": 1}\n')
    append(events, {"event": "waiting_ended"}, {"event": "graph", "operations": ["x" * settings.IO_BLOCK_BYTES]})
    append(events, *({"event": "metric", "name": "loss", "value": step, "step": step} for step in range(5000)))
    assert read(reader) == RunReport("train-1", metrics={"accuracy": 0.5, "loss": 4999}, step=4999)
    assert reader.offset == events.stat().st_size


def test_runs_with_large_results_fit_into_one_answer(client: AgentClient, tmp_path: Path) -> None:
    script, size = tmp_path / "large.py", settings.LIVE_VALUE_MAX_CHARS
    script.write_text(f"import tfcluster\ntfcluster.metric('loss', 0.5, 1)\ntfcluster.result('x' * {3 * size})\n")
    known = client.call(ViewRequest({}, None))
    identity = submit(client, script)
    ended = ask_until(client, known, lambda reply: reply.runs and reply.runs[-1].state is RunState.SUCCEEDED)
    assert ended.runs is not None
    assert ended.runs[-1].run == identity
    assert ended.runs[-1].result == {"exit_code": 0, "metrics": {"loss": 0.5}}
    full = next(run for run in client.call(RunsRequest(None)).runs if run.run == identity)
    assert full.result is not None
    assert len(full.result["value"]) == 3 * size


def test_the_latest_metrics_are_in_the_last_part_of_a_file_that_grows(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    assert read_latest_metrics(events) is None
    append(events, {"event": "run"})
    assert read_latest_metrics(events) is None
    append(events, *({"event": "metric", "name": "loss", "value": step, "step": step} for step in range(2000)))
    append(events, {"event": "metric", "task": "worker:1", "name": "loss", "value": 0.5})
    with events.open("a") as file:
        file.write('{"event": "metric", "na')
    assert events.stat().st_size > settings.IO_BLOCK_BYTES
    assert read_latest_metrics(events) == {"metrics": {"loss": 1999, "worker:1": {"loss": 0.5}}}
