"""Call several hosts in parallel (fan-out), each in a thread of its own that never keeps a command from exiting.

The threads are daemon threads and never write to the terminal: they pass their messages to the thread that waits for
them. For this machine only, no thread is started.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tfcluster import settings
from tfcluster.client.output import tell
from tfcluster.client.rpc import ResponseStream
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST
from tfcluster.transport.base import HostUnreachableError

E = TypeVar("E")
T = TypeVar("T")


def map_hosts(
    hosts: Iterable[str],
    function: Callable[[str], T],
    seconds: float | None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, T | ClusterError]:
    """Call a function for each host, for all hosts in parallel.

    Args:
        hosts: The hosts.
        function: The function to call with the host's name.
        seconds: The timeout in seconds; None if the function has a timeout of its own.
        progress: Called each time a host is done, with the number of hosts that are done.

    Returns:
        The value that the function returned, or the ClusterError that it raised, by host in the order of `hosts`.
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
    """An exception other than a ClusterError (a bug in tfcluster) that a thread raised."""

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
    """Partition the outcomes of `map_hosts` into the returned values and the errors, each by host."""
    wrong = {host: outcome for host, outcome in outcomes.items() if isinstance(outcome, ClusterError)}
    return {host: outcome for host, outcome in outcomes.items() if not isinstance(outcome, ClusterError)}, wrong


class StreamContext:
    """The operations by which a stream prints, waits and reads, so that it can be read in parallel with others.

    This implementation is for a single stream that the main thread reads.

    Args:
        host: The host of the stream.
    """

    def __init__(self, host: str) -> None:
        self.host = host

    def tell(self, text: str) -> None:
        """Print a message to standard error."""
        tell(text)

    def pause(self, seconds: float) -> None:
        """Sleep for a number of seconds."""
        time.sleep(seconds)

    def events(self, response: ResponseStream[E, Any]) -> Iterator[E]:
        """Iterate over the events of a response."""
        return response


class _StoppedError(Exception):
    """The stream has no reader any more."""


class _ThreadStreamContext(StreamContext):
    """The context of a stream that is read by a thread, up to its end or until `stop` is set."""

    def __init__(self, host: str, items: queue.Queue[tuple[str, Any]], stop: threading.Event) -> None:
        super().__init__(host)
        self._items = items
        self._stop = stop

    def tell(self, text: str) -> None:
        self.put(_LogMessage(text))

    def pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _StoppedError

    def events(self, response: ResponseStream[E, Any]) -> Iterator[E]:
        while True:
            self._wait_for(response)
            try:
                yield next(response)
            except StopIteration:
                return

    def _wait_for(self, response: ResponseStream[Any, Any]) -> None:
        looks = 0
        while not response.wait_readable(settings.THREAD_POLL_SECONDS):
            self.pause(0.0)
            looks += 1
            if response.timeout is not None and looks * settings.THREAD_POLL_SECONDS > response.timeout:
                raise _silent(self.host, response.timeout)

    def put(self, item: Any) -> None:
        while True:
            self.pause(0.0)
            with contextlib.suppress(queue.Full):
                self._items.put((self.host, item), timeout=settings.THREAD_POLL_SECONDS)
                return


class _LogMessage:
    def __init__(self, text: str) -> None:
        self.text = text


_END = object()


def merge_streams(
    streams: Mapping[str, Callable[[StreamContext], Iterator[T]]],
) -> Generator[tuple[str, T | ClusterError], None, None]:
    """Merge the streams of several hosts; closing the generator ends all of them.

    Args:
        streams: A function that opens the stream, by host.

    Yields:
        Each item with its host, in the order of arrival. A stream that fails ends with its ClusterError as last item.
    """
    if streams.keys() == {LOCAL_HOST}:
        yield from ((LOCAL_HOST, item) for item in _with_error(streams[LOCAL_HOST], StreamContext(LOCAL_HOST)))
        return
    items: queue.Queue[tuple[str, Any]] = queue.Queue(settings.RESPONSE_QUEUE_ITEMS)
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
