"""Several hosts at once: each bounded, none waited for by the others, and this machine alone without a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.conftest import wait_for
from tfcluster.client.parallel import StreamContext, map_hosts, merge_streams, split
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST


def test_all_are_asked_at_once_and_what_goes_wrong_is_that_hosts_own() -> None:
    meeting = threading.Barrier(3)

    def ask(host: str) -> str:
        meeting.wait(30)  # passes only when all three are here
        if host == "b":
            raise ClusterError("no")
        return host.upper()

    done: list[int] = []
    told, wrong = split(map_hosts("abc", ask, 30.0, done.append))
    assert told == {"a": "A", "c": "C"}
    assert {host: error.message for host, error in wrong.items()} == {"b": "no"}
    assert done == [1, 2, 3]


def test_nobody_waits_for_a_host_that_hangs() -> None:
    hang = threading.Event()
    found = map_hosts(["a", "b"], lambda host: hang.wait(60) if host == "b" else True, 0.2)
    hang.set()
    error = found["b"]
    assert found["a"] is True
    assert isinstance(error, ClusterError)
    assert error.message == "host 'b' cannot be reached: it has not answered within 0.2 s"
    assert error.exit_code is ExitCode.UNREACHABLE


def test_a_mistake_of_ours_is_raised_where_somebody_sees_it() -> None:
    with pytest.raises(ZeroDivisionError):
        map_hosts(["a", "b"], lambda host: 1 // (host == "a"), 30.0)
    with pytest.raises(ZeroDivisionError):
        list(merge_streams(dict.fromkeys("ab", lambda strand: iter([1 // (strand.host == "a")]))))


def test_this_machine_alone_needs_no_thread() -> None:
    assert map_hosts([LOCAL_HOST], lambda _: threading.current_thread(), None)[LOCAL_HOST] is threading.main_thread()
    streams = {LOCAL_HOST: lambda _: iter([threading.current_thread()])}
    assert list(merge_streams(streams)) == [(LOCAL_HOST, threading.main_thread())]


def test_streams_come_as_they_come_and_end_with_what_went_wrong() -> None:
    second = threading.Event()

    def stream(strand: StreamContext) -> Iterator[str]:
        if strand.host == "slow":
            second.wait(30)
            yield "slow"
        else:
            yield "fast"
            raise ClusterError("broken")

    items = []
    for host, item in merge_streams({"slow": stream, "fast": stream}):
        items.append((host, str(item)))
        if isinstance(item, ClusterError):
            second.set()
    assert items == [("fast", "fast"), ("fast", "broken"), ("slow", "slow")]


def test_closing_ends_streams_that_go_on_and_such_that_nobody_reads() -> None:
    before = set(threading.enumerate())

    def endless(strand: StreamContext) -> Iterator[int]:
        while True:
            yield 1
            if strand.host == "quiet":
                strand.pause(600.0)

    streams = merge_streams({"loud": endless, "quiet": endless})
    assert next(streams)[1] == 1
    assert len(set(threading.enumerate()) - before) == 2
    streams.close()
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_what_a_strand_says_is_said_by_the_thread_that_reads(capsys: pytest.CaptureFixture[str]) -> None:
    def stream(strand: StreamContext) -> Iterator[int]:
        strand.tell(f"{strand.host}: connection lost")
        yield 1

    assert sorted(merge_streams({"a": stream, "b": stream})) == [("a", 1), ("b", 1)]
    assert sorted(capsys.readouterr().err.splitlines()) == ["a: connection lost", "b: connection lost"]


def test_the_items_of_one_host_stay_in_their_order() -> None:
    def stream(strand: StreamContext) -> Iterator[int]:
        yield from range(10_000)  # more than may wait to be read

    found: dict[str, list[object]] = {"a": [], "b": []}
    for host, number in merge_streams({"a": stream, "b": stream}):
        found[host].append(number)
    assert found == {"a": list(range(10_000)), "b": list(range(10_000))}
