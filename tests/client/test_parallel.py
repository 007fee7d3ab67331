"""Calling hosts in parallel: timeouts, errors of single hosts, merged streams, Ctrl-C."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.client.rpc.parallel import StreamContext, map_hosts, merge_streams
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.transport.errors import HostUnreachableError


def test_hosts_are_called_in_parallel_and_errors_belong_to_their_host() -> None:
    meeting = threading.Barrier(3)

    def ask(host: str) -> str:
        meeting.wait(30)  # passes only when all three are here
        if host == "b":
            raise ClusterError("no")
        return host.upper()

    done: list[int] = []
    values, errors = map_hosts("abc", ask, 30.0, done.append)
    assert values == {"a": "A", "c": "C"}
    assert {host: error.message for host, error in errors.items()} == {"b": "no"}
    assert done == [1, 2, 3]


def test_a_host_that_hangs_times_out() -> None:
    hang = threading.Event()
    done: list[int] = []
    values, errors = map_hosts("ab", lambda host: hang.wait(60) if host == "b" else True, 1.0, done.append)
    assert (values, done) == ({"a": True}, [1])
    assert errors["b"].message == "host 'b' has not answered within 1 s"
    assert errors["b"].exit_code is ExitCode.UNREACHABLE
    assert [*map_hosts("b", lambda host: hang.wait(60), 0.05)[1]] == ["b"], "alone, too"
    hang.set()
    assert map_hosts([LOCAL_HOST], lambda host: host, 60.0, done.append) == ({LOCAL_HOST: LOCAL_HOST}, {})
    assert done == [1, 1]


def test_a_host_that_is_away_is_named_while_others_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HOST_ERROR_DELAY_SECONDS", 0.05)
    monkeypatch.setattr("sys.stderr", errors := io.StringIO())

    def ask(host: str) -> str:
        if host == "dead":
            raise HostUnreachableError(host, "no route to host")
        wait_for(errors.getvalue)
        return host

    assert map_hosts(["dead", "slow"], ask, 60.0, find_lost=lambda value: None)[0] == {"slow": "slow"}
    assert errors.getvalue() == "host 'dead' cannot be reached: no route to host; waiting for the other hosts\n"


def test_a_host_that_is_away_is_not_named_twice_when_all_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    def ask(host: str) -> str:
        raise HostUnreachableError(host, "no route to host")

    assert len(map_hosts(["a", "b"], ask, 60.0, find_lost=lambda value: None)[1]) == 2
    assert capsys.readouterr().err == ""


def test_an_unexpected_exception_is_raised_in_the_callers_thread() -> None:
    with pytest.raises(ZeroDivisionError):
        map_hosts(["a", "b"], lambda host: 1 // (host == "a"), 30.0)
    with pytest.raises(ZeroDivisionError):
        list(merge_streams(dict.fromkeys("ab", lambda context: iter([1 // (context.host == "a")]))))


@pytest.mark.parametrize("hosts", [[LOCAL_HOST], ["a", "b"]])
def test_an_interrupt_ends_the_wait_for_hosts_that_hang(hosts: list[str]) -> None:
    hang, called = threading.Event(), threading.Barrier(len(hosts) + 1)

    def call(host: str) -> None:
        called.wait(60)
        hang.wait(60)

    def interrupt() -> None:
        called.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        map_hosts(hosts, call, None)
    assert not hang.is_set(), "the hosts have not answered"
    hang.set()


def test_streams_are_merged_in_order_of_arrival_and_end_with_their_error() -> None:
    second = threading.Event()

    def stream(context: StreamContext) -> Iterator[str]:
        if context.host == "slow":
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


def test_closing_ends_endless_and_silent_streams() -> None:
    before = set(threading.enumerate())

    def endless(context: StreamContext) -> Iterator[int]:
        while True:
            yield 1
            if context.host == "quiet":
                context.sleep(600.0)

    streams = merge_streams({"loud": endless, "quiet": endless})
    assert next(streams)[1] == 1
    assert len(set(threading.enumerate()) - before) == 2
    streams.close()
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_the_items_of_one_host_stay_in_their_order_and_warnings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def stream(context: StreamContext) -> Iterator[int]:
        context.warn(f"{context.host}: connection lost")
        yield from range(10_000)  # more than may wait to be read

    outcomes: dict[str, list[object]] = {"a": [], "b": []}
    for host, number in merge_streams({"a": stream, "b": stream}):
        outcomes[host].append(number)
    assert outcomes == {"a": list(range(10_000)), "b": list(range(10_000))}
    assert sorted(capsys.readouterr().err.splitlines()) == ["a: connection lost", "b: connection lost"]
