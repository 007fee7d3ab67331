"""The responses to `logs`: ordered by time, from a position on, also of tasks that are added later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.event_loop import FolderWatcher
from tfcluster.agent.handlers.logs import LogHandlers
from tfcluster.agent.logs.cluster_logs import AgentLogHandler, EventLog
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.core.log_levels import LogLevel
from tfcluster.errors import ClusterError
from tfcluster.processes.logs.log_buffer import prepare
from tfcluster.processes.logs.rotating_log import RotatingLog
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.logs import AGENT_LOG, EventEvent, EventsRequest, LogEvent, LogPositions, LogsRequest


class Cluster:
    """A state folder with the logs of tasks, and the calls about them."""

    def __init__(self, path: Path, *tasks: str) -> None:
        self.folder = self.state_dir = StateDir(path)
        self.folder.make()
        self.cluster = "demo"
        self.tasks = list(tasks)
        self.quitting = asyncio.Event()
        self.runs = SimpleNamespace(watcher=FolderWatcher())
        self.tasks_here: list[SimpleNamespace] = []
        topology = SimpleNamespace(on=lambda host: self.tasks_here, has_servers=True)
        self.supervisor = SimpleNamespace(topology=topology, host="localhost")
        for short in tasks:
            self.add(short)
        self.calls = LogHandlers(cast(AgentContext, self))

    def add(self, short: str) -> None:
        self.tasks_here.append(SimpleNamespace(short=short))

    def print(self, short: str, text: str) -> None:
        prepare(self.folder.log_buffer_of(short), self.folder.log_of(short))
        with self.folder.log_buffer_of(short).open("ab") as file:
            file.write(text.encode())

    def logs(self, *tasks: str, **options: Any) -> Response[LogEvent | LogPositions, Done]:
        return self.calls.logs(replace(LogsRequest(tasks, None, None, follow=False, after={}), **options))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "demo" / "localhost", "ps:0", "worker:0")


async def ask(cluster: Cluster, *tasks: str, **options: Any) -> tuple[list[LogPositions], list[tuple[str, str]]]:
    """The positions and the lines that a request for logs gets."""
    *events, last = [item async for item in cluster.logs(*tasks, **options)]
    assert last == Reply(Done())
    positions = [event for event in events if isinstance(event, LogPositions)]
    return positions, [(event.line.task, event.line.line) for event in events if isinstance(event, LogEvent)]


async def next_line(lines: Response[LogEvent | LogPositions, Done]) -> tuple[str, str, int]:
    """The next line of a log that is followed, and the position after it."""
    event = await asyncio.wait_for(anext(lines), 30)
    assert isinstance(event, LogEvent)
    return event.log, event.line.line, event.next


async def test_lines_are_ordered_by_time_and_followed_by_a_reply(cluster: Cluster) -> None:
    for short, begin in (("ps:0", 0), ("worker:0", 1)):
        log = RotatingLog(cluster.folder.log_of(short), 1000, 2)
        for number in range(3):
            log.append(b"%d\n" % number, 2 * number, 100.0 + 10 * number + begin)
    everything = [(task, str(number)) for number in range(3) for task in ("ps:0", "worker:0")]
    assert await ask(cluster) == ([LogPositions({"ps:0": 0, "worker:0": 0})], everything)
    assert (await ask(cluster, lines=1))[1] == everything[-2:]
    assert (await ask(cluster, since=111.0))[1] == everything[-3:]
    assert (await ask(cluster, since=111.0, lines=2))[1] == everything[-3:]
    assert (await ask(cluster, after={"ps:0": 4}, lines=0))[1] == [("ps:0", "2")]
    assert (await ask(cluster, until=111.0))[1] == everything[:4]
    assert (await ask(cluster, since=101.0, until=110.5, lines=1))[1] == everything[1:3]


async def test_lines_from_before_the_latest_start_of_the_cluster_are_read_only_since_a_time(cluster: Cluster) -> None:
    log, now = RotatingLog(cluster.folder.log_of("ps:0"), 1000, 2), time.time()
    for number, written in enumerate((now - 100.0, now + 100.0)):
        log.append(b"%d\n" % number, 2 * number, written)
    for _ in range(2):
        EventLog(cluster.folder.events).record("up")
    assert (await ask(cluster))[1] == [("ps:0", "1")]
    assert (await ask(cluster, since=now - 200.0))[1] == [("ps:0", "0"), ("ps:0", "1")]


async def test_a_level_hides_entries_and_the_last_lines_are_counted_of_those_that_are_shown(cluster: Cluster) -> None:
    dump = b"I0000 00:00:1.5 7 a.cc:1] SessionOptions: \ndevice_count {\n  value: 1\n}\n\n"
    text = b"".join(b"loss %d\n" % number + 9 * dump for number in range(100))
    RotatingLog(cluster.folder.log_of("ps:0"), 1 << 20, 2).append(text, 0, 100.0)

    async def shown(**options: Any) -> tuple[list[str], int]:
        positions, lines = await ask(cluster, "ps:0", level=LogLevel.WARNING, **options)
        return [line for _, line in lines], sum(each.hidden for each in positions)

    positions, _ = await ask(cluster, "ps:0", level=LogLevel.WARNING)
    assert positions[1:] == [LogPositions({"ps:0": len(text)}, 900)]
    losses = [f"loss {number}" for number in range(100)]
    assert await shown() == await shown(lines=1000) == (losses, 900)
    assert await shown(lines=3) == (losses[-3:], 27)
    assert await shown(grep=("loss 9", "Session"), lines=2) == (losses[-2:], 18)
    assert await shown(after={"ps:0": len(text)}) == ([], 0)


async def test_a_search_resumes_and_counts_only_lines_that_match(cluster: Cluster) -> None:
    for short in ("ps:0", "worker:0"):
        RotatingLog(cluster.folder.log_of(short), 1000, 2).append(b"a1\nb2\na3\nb4\na5\n", 0, 100.0)
    positions, lines = await ask(cluster, grep=("b[0-9]", "3"))
    assert positions[0] == LogPositions({"ps:0": 0, "worker:0": 0})
    assert lines == [(task, text) for task in ("ps:0", "worker:0") for text in ("b2", "a3", "b4")]
    positions, lines = await ask(cluster, grep=("a",), lines=1)
    assert positions[0] == LogPositions({}), "where the last lines begin is not known yet"
    assert lines == [("ps:0", "a5"), ("worker:0", "a5")]
    positions, lines = await ask(cluster, grep=("a",), lines=1, after={"ps:0": 3})
    assert positions[0] == LogPositions({"ps:0": 3})
    assert lines == [("ps:0", "a3"), ("ps:0", "a5"), ("worker:0", "a5")]
    with pytest.raises(ClusterError, match="is not a regular expression"):
        await ask(cluster, grep=("[",))


async def test_a_followed_log_is_searched_as_it_is_written(cluster: Cluster) -> None:
    cluster.print("ps:0", "a1\nb2\n")
    async with contextlib.aclosing(cluster.logs("ps:0", follow=True, grep=("a",), lines=5)) as lines:
        assert await anext(lines) == LogPositions({})
        assert await next_line(lines) == ("ps:0", "a1", 3)
        cluster.print("ps:0", "b3\na4\n")
        assert await next_line(lines) == ("ps:0", "a4", 12)


async def test_a_followed_log_has_a_level(cluster: Cluster) -> None:
    """Entries of TensorFlow have one; what a program prints itself has none, and is shown."""
    async with contextlib.aclosing(cluster.logs("ps:0", follow=True, level=LogLevel.ERROR)) as lines:
        assert isinstance(await anext(lines), LogPositions)
        for text in ("I0000 00:00:01.5 7 a.cc:1] quiet\n", "E0000 00:00:01.5 7 a.cc:1] loud\n", "own words\n"):
            cluster.print("ps:0", text)
        shown: list[str] = []
        while len(shown) < 2:
            event = await asyncio.wait_for(anext(lines), 30)
            shown += [event.line.line] if isinstance(event, LogEvent) else []
    assert shown == ["E0000 00:00:01.5 7 a.cc:1] loud", "own words"]


async def test_following_continues_after_a_position_and_includes_new_tasks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOG_FOLLOW_SECONDS", 0)
    cluster.print("ps:0", "one\ntwo\nhal")
    lines = cluster.logs(follow=True, after={"ps:0": 4})
    assert await anext(lines) == LogPositions({"ps:0": 4, "worker:0": 0})
    assert await next_line(lines) == ("ps:0", "two", 8)
    cluster.print("ps:0", "f\n")
    assert await next_line(lines) == ("ps:0", "half", 13)
    RotatingLog(cluster.folder.log_of("worker:1"), 1000, 2).append(b"of an earlier life\n", 0, time.time() - 100)
    cluster.add("worker:1")
    cluster.print("worker:1", "new\n")
    assert await next_line(lines) == ("worker:1", "new", 23)
    cluster.print("worker:0", "last words\nand no more")
    cluster.quitting.set()
    assert await next_line(lines) == ("worker:0", "last words", 11)
    assert await anext(lines) == Reply(Done())


async def test_followed_logs_are_read_when_they_are_written(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LOG_CHECK_SECONDS", 3600.0)
    cluster.print("worker:0", "")
    cluster.print("ps:0", "one\n")
    async with contextlib.aclosing(cluster.logs(follow=True)) as lines:
        assert isinstance(await anext(lines), LogPositions)
        assert await next_line(lines) == ("ps:0", "one", 4)
        for word in ("two", "six"):
            asyncio.get_running_loop().call_later(0.1, cluster.print, "ps:0", f"{word}\n")
            assert (await next_line(lines))[1] == word
        following = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.2)
        cluster.quitting.set()
        assert await asyncio.wait_for(following, 30) == Reply(Done())
    assert cluster.runs.watcher._inotify is None


async def test_the_event_log_is_bounded_and_read_from_a_position(cluster: Cluster) -> None:
    async def read(**options: Any) -> list[EventEvent]:
        request = replace(EventsRequest(None, None, follow=False, after={}), **options)
        return [item async for item in cluster.calls.events(request) if isinstance(item, EventEvent)]

    for number in range(3):  # each by an agent of its own
        EventLog(cluster.folder.events).record("ready", task="ps:0", detail=str(number))
    events = await read()
    assert [event.line.detail for event in events] == ["0", "1", "2"]
    assert await read(after={"": events[1].next}) == await read(lines=1) == events[2:]
    history = EventLog(cluster.folder.events)
    for _ in range(6000):
        history.record("ready", task="ps:0", detail="x" * 1000)
    assert sum(path.stat().st_size for path in cluster.folder.logs.iterdir()) <= 4_000_000


async def test_the_agents_own_log_is_bounded_and_names_tasks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "EVENT_LOG_FILE_BYTES", 500)
    handler = AgentLogHandler(cluster.folder.agent_log)
    for number in range(1000):
        handler.emit(logging.makeLogRecord({"levelname": "INFO", "msg": f"number {number}", "task": "worker:0"}))
    sizes = [path.stat().st_size for path in cluster.folder.logs.glob("agent.log*")]
    assert len(sizes) == settings.EVENT_LOG_FILES
    assert max(sizes) <= 600
    _, lines = await ask(cluster, AGENT_LOG, lines=2)
    assert lines == [("agent", f"INFO    worker:0 number {number}") for number in (998, 999)]
