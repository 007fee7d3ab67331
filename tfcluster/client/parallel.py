"""Asking several hosts at once: each in a thread of its own, none of which a command has to wait for.

The threads are daemons and never write to the terminal: what they have to say comes by way of the thread that waits.
For this machine alone there is no thread.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tfcluster.client.output import tell
from tfcluster.client.rpc import ResponseStream
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.codec import Message
from tfcluster.transport.base import HostUnreachableError

T = TypeVar("T")

# How long a thread goes on at most after nobody needs it any more, where it waits for an agent's next line.
_LOOK_SECONDS = 0.2
# What has come and has not been taken: more is left to the agents to keep.
_WAITING_ITEMS = 4096


def map_hosts(
    hosts: Iterable[str],
    function: Callable[[str], T],
    seconds: float | None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, T | ClusterError]:
    """Call a function for each host, for all at once.

    Args:
        hosts: The hosts.
        function: What to call.
        seconds: Longer nobody waits; None where the function itself is bounded.
        progress: Called with the number of hosts that are done, at each that is.

    Returns:
        What the function returned or raised, by host in the order of `hosts`.
    """
    names = list(hosts)
    if names == [LOCAL_HOST]:
        return {LOCAL_HOST: _outcome(function, LOCAL_HOST)}
    done: queue.SimpleQueue[tuple[str, T | ClusterError | _UnexpectedError]] = queue.SimpleQueue()
    for name in names:
        threading.Thread(target=_call, args=(function, name, done), daemon=True).start()
    deadline = None if seconds is None else time.monotonic() + seconds
    found: dict[str, T | ClusterError] = {}
    while len(found) < len(names):
        try:
            name, outcome = done.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(outcome, _UnexpectedError):
            raise outcome.error
        found[name] = outcome
        if progress is not None:
            progress(len(found))
    return {name: found[name] if name in found else _silent(name, seconds or 0.0) for name in names}


class _UnexpectedError:
    """A mistake of ours that showed itself in a thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _call(
    function: Callable[[str], T], host: str, done: queue.SimpleQueue[tuple[str, T | ClusterError | _UnexpectedError]]
) -> None:
    try:
        done.put((host, _outcome(function, host)))
    except BaseException as error:
        done.put((host, _UnexpectedError(error)))


def _outcome(function: Callable[[str], T], host: str) -> T | ClusterError:
    try:
        return function(host)
    except ClusterError as error:
        return error


def _silent(host: str, seconds: float) -> ClusterError:
    return HostUnreachableError(
        host, f"it has not answered within {seconds:g} s", "Look whether it is up, and whether `ssh` to it works."
    )


def split(outcomes: Mapping[str, T | ClusterError]) -> tuple[dict[str, T], dict[str, ClusterError]]:
    """What came of `map_hosts`, and what went wrong, by host."""
    wrong = {host: outcome for host, outcome in outcomes.items() if isinstance(outcome, ClusterError)}
    return {host: outcome for host, outcome in outcomes.items() if not isinstance(outcome, ClusterError)}, wrong


class StreamContext:
    """What a stream that is read beside others has to keep to. This one is read alone, by the main thread.

    Args:
        host: Whose stream it is.
    """

    def __init__(self, host: str) -> None:
        self.host = host

    def tell(self, text: str) -> None:
        """Have something said on standard error."""
        tell(text)

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def events(self, answer: ResponseStream) -> Iterator[Message]:
        """The events of an answer."""
        return answer


class _StoppedError(Exception):
    """Nobody reads the stream any more."""


class _ThreadStreamContext(StreamContext):
    """A strand that is read by a thread, up to its end or until nobody wants more."""

    def __init__(self, host: str, items: queue.Queue[tuple[str, Any]], stop: threading.Event) -> None:
        super().__init__(host)
        self._items = items
        self._stop = stop

    def tell(self, text: str) -> None:
        self.put(_LogMessage(text))

    def pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _StoppedError

    def events(self, answer: ResponseStream) -> Iterator[Message]:
        while True:
            self._wait_for(answer)
            try:
                yield next(answer)
            except StopIteration:
                return

    def _wait_for(self, answer: ResponseStream) -> None:
        looks = 0
        while not answer.arrives_within(_LOOK_SECONDS):
            self.pause(0.0)
            looks += 1
            if answer.patience is not None and looks * _LOOK_SECONDS > answer.patience:
                raise _silent(self.host, answer.patience)

    def put(self, item: Any) -> None:
        while True:
            self.pause(0.0)
            with contextlib.suppress(queue.Full):
                self._items.put((self.host, item), timeout=_LOOK_SECONDS)
                return


class _LogMessage:
    def __init__(self, text: str) -> None:
        self.text = text


_END = object()


def merge_streams(
    streams: Mapping[str, Callable[[StreamContext], Iterator[T]]],
) -> Generator[tuple[str, T | ClusterError], None, None]:
    """What several hosts' streams give, as it comes, each with its host; closing it ends them all.

    Args:
        streams: Makes the stream, by host. One that fails ends with its ClusterError as its last item.
    """
    if streams.keys() == {LOCAL_HOST}:
        yield from ((LOCAL_HOST, item) for item in _with_error(streams[LOCAL_HOST], StreamContext(LOCAL_HOST)))
        return
    items: queue.Queue[tuple[str, Any]] = queue.Queue(_WAITING_ITEMS)
    stop = threading.Event()
    for host, stream in streams.items():
        strand = _ThreadStreamContext(host, items, stop)
        threading.Thread(target=_pump, args=(stream, strand), daemon=True).start()
    left = len(streams)
    try:
        while left:
            host, item = items.get()
            if item is _END:
                left -= 1
            elif isinstance(item, _UnexpectedError):
                raise item.error
            elif isinstance(item, _LogMessage):
                tell(item.text)
            else:
                yield host, item
    finally:
        stop.set()


def _pump(stream: Callable[[StreamContext], Iterator[T]], strand: _ThreadStreamContext) -> None:
    with contextlib.suppress(_StoppedError):
        try:
            for item in _with_error(stream, strand):
                strand.put(item)
            strand.put(_END)
        except _StoppedError:
            raise
        except BaseException as error:
            strand.put(_UnexpectedError(error))


def _with_error(stream: Callable[[StreamContext], Iterator[T]], strand: StreamContext) -> Iterator[T | ClusterError]:
    try:
        yield from stream(strand)
    except ClusterError as error:
        yield error
