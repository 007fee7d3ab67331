"""How `top` divides the screen: what there is finds room, at any size of the terminal; what it says of one task."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import Static

from tests.core.test_status import READY
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.view import LiveRun, LiveView
from tfcluster.core.hosts import Host
from tfcluster.core.states import ClusterState, HostState, RunState, TaskState
from tfcluster.core.status import ClusterStatus, HostStatus, RunStatus, TaskStatus
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.ui.top import app
from tfcluster.ui.top.app import Table
from tfcluster.ui.top.rows import describe_run, describe_task, event_lines, run_content, share_lines

_HOSTS = (HostStatus("localhost", HostState.UP, 7, "2.21.0"),)


def make_view(tasks: int, runs: int, events: int) -> LiveView:
    def task(number: int) -> TaskStatus:
        name = f"/job:worker/task:{number}"
        address = f"localhost:{2222 + number}"
        ready = TaskState.READY
        return TaskStatus(name, "worker", number, "localhost", address, ready, number + 1, 0, 1.0, 1.0, 1, (), None)

    def run(number: int) -> LiveRun:
        state, began = RunState.SUCCEEDED, time.time() - 20
        values: Any = (f"train-{number:04}", "script", {}, state, 1.0, began, None, None, None, None, 0, "train.py")
        return LiveRun("localhost", RunSummary(*values))

    status = ClusterStatus("demo", ClusterState.RUNNING, "demo.yaml", _HOSTS, tuple(map(task, range(tasks))), ())
    event = {"time": time.time(), "task": "worker:0", "event": "ready", "detail": "", "host": None}
    return LiveView(status, {}, tuple(map(run, range(runs))), (event,) * events, None)


class Live:
    """A cluster that stands still."""

    def __init__(self, view: LiveView) -> None:
        self.view = lambda: view
        self.version = 1

    def start(self) -> None:
        pass


class NoTerminal:
    """In place of the signals of a terminal: the test has none, and keeps its own handlers."""

    def __init__(self, top: app.TopApp) -> None:
        pass

    def start(self) -> None:
        pass

    def handle(self) -> None:
        pass


def show(monkeypatch: pytest.MonkeyPatch, view: LiveView, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the lines of tasks, of runs and of events, and how many lines of the screen are left empty."""
    monkeypatch.setattr(app, "LiveCluster", lambda *arguments: Live(view))
    monkeypatch.setattr(app, "TerminalSignals", NoTerminal)
    snapshot: Any = None

    async def read() -> tuple[int, int, int, int]:
        top = app.TopApp(Cluster("demo", (Host("localhost", "localhost"),)), snapshot)
        async with top.run_test(size=size) as pilot:
            await pilot.pause()
            events = top.query_one("#events", Static)
            assert events.region.right == size[0], "the screen is used up to its right edge"
            shown = str(events.render()).count("ready")
            tables = [top.query_one(f"#{name}", Table).size.height for name in ("tasks", "runs")]
            assert top.query_one("#message", Static).region.bottom == size[1] - 1, "all is on the screen"
            return tables[0] - 1, tables[1] - 1, shown, events.size.height - shown

    return asyncio.run(read())


@pytest.mark.parametrize("tasks", [8, 60])
def test_no_line_is_empty_while_something_is_left_out(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    *shown, empty = show(monkeypatch, make_view(tasks, 20, 100), (80, 24))
    assert empty == 0
    assert sum(shown) == 16, "all but the title, the host, two headers, two empty lines, the message and the keys"
    assert shown[0] <= tasks
    assert shown[1] <= 20
    assert min(shown) >= 2


@pytest.mark.parametrize(("tasks", "in_tables"), [(8, (8, 20)), (60, (33, 20))])
def test_events_are_beside_the_tables_of_a_wide_screen(
    monkeypatch: pytest.MonkeyPatch, tasks: int, in_tables: tuple[int, int]
) -> None:
    *tables, events, empty = show(monkeypatch, make_view(tasks, 20, 100), (200, 60))
    assert (*tables,) == in_tables
    assert (events, empty) == (56, 0), "all but the title, the host, the message and the keys"


@pytest.mark.parametrize(("width", "end"), [(60, "\N{HORIZONTAL ELLIPSIS}"), (200, "=0.5")])
def test_what_does_not_fit_in_a_row_of_a_run_ends_with_an_ellipsis(width: int, end: str) -> None:
    view = make_view(1, 1, 0)
    metrics = {f"metric_{number}": 0.5 for number in range(6)}
    record = replace(view.runs[0].record, result={"exit_code": 0, "metrics": metrics})
    content = run_content(replace(view, runs=(replace(view.runs[0], record=record),)), "", width)
    (row,) = content.rows.values()
    assert row[-1].plain.endswith(end)
    assert sum(content.widths) <= width
    assert row[-1].cell_len <= content.widths[-1]


def test_no_event_is_shown_where_there_is_no_room_and_the_last_ones_where_there_is_little() -> None:
    events = [{"time": 0.0, "task": None, "event": "ready", "detail": str(number)} for number in range(5)]
    assert event_lines(events, 0) == []
    assert [line.plain.split()[-1] for line in event_lines(events, 2)] == ["3", "4"]
    assert len(event_lines(events, 9)) == 5


def test_few_things_have_all_the_room_they_want(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(monkeypatch, make_view(3, 5, 10), (200, 60))[:3] == (3, 5, 10)


@pytest.mark.parametrize(
    ("lines", "wanted", "given"),
    [
        (50, [9, 21, 100], [9, 21, 20]),
        (12, [100, 100, 100], [6, 4, 2]),
        (10, [3, 2, 1], [3, 2, 1]),
        (10, [20, 0, 3], [8, 0, 2]),
        (-3, [1, 1, 1], [0, 0, 0]),
    ],
)
def test_lines_are_shared(lines: int, wanted: list[int], given: list[int]) -> None:
    assert share_lines(lines, wanted) == given


@pytest.mark.parametrize(("memory", "shown"), [(3 << 30, True), (None, False)])
def test_the_gpu_memory_of_a_task_and_a_run(memory: int | None, shown: bool) -> None:
    tasks = (replace(READY, gpu_memory_bytes=memory),)
    runs = (RunStatus("fit-3f9a", "script", RunState.RUNNING, 1.0, memory),)
    status = ClusterStatus("demo", ClusterState.RUNNING, "cluster.yaml", (), tasks, runs)
    record = RunSummary("fit-3f9a", "linear", {"steps": 100}, RunState.RUNNING, 1.0, 0.0, None, None, None, None)
    view = LiveView(status, {}, (LiveRun("localhost", record),), ())
    for text in (describe_task(view, "worker:0"), describe_run(view, "fit-3f9a")):
        assert ("GPU memory 3.0 GiB" in text.plain) is shown
