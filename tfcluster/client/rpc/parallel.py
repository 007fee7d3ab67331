"""Call the hosts of a cluster in parallel, each in a thread of its own; one host is handled like many.

The caller's thread only collects results, so that Ctrl-C interrupts it at once. The other threads are daemon threads,
which never keep a command from exiting, and write nothing to the terminal: their messages are printed by the caller's
thread. A thread whose result is no longer awaited ends with its request, as every request has a timeout.
"""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tfcluster import settings
from tfcluster.client.rpc.agent_client import ResponseStream
from tfcluster.control_characters import escape_control_characters
from tfcluster.errors import ClusterError, ExitCode

if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster
    from tfcluster.protocol.api import Request

E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")

#: Held while a host checks or starts what it has not yet. What hundreds of hosts send at the same time would keep the
#: processes on this machine that carry it so busy that connections appear to be lost.
starting_host = threading.BoundedSemaphore(settings.HOST_STARTS_AT_ONCE)


def warn(text: str) -> None:
    """Print a warning or a note to standard error.

    Call it from the main thread only: another thread that blocks while it writes could keep the command from exiting.
    """
    print(escape_control_characters(text), file=sys.stderr, flush=True)


class StreamStoppedError(Exception):
    """The stream has no reader any more."""


class StreamContext:
    """The operations by which a stream prints, waits and reads, whichever thread reads it.

    `print_warning` prints to standard error. `stopped` is set when the stream has no reader any more.
    """

    def __init__(
        self,
        host: str,
        print_warning: Callable[[str], None] = warn,
        stopped: threading.Event | None = None,
    ) -> None:
        self.host = host
        self.warn = print_warning
        self._stopped = stopped or threading.Event()

    def on_lost(self, reason: str) -> None:
        """Warn that the host is lost, and is tried again."""
        self.warn(f"{reason}, trying again")

    def on_connected(self) -> None:
        """Print that the host is connected again."""
        self.warn(f"{self.host}: connected again")

    def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds."""
        if self._stopped.wait(seconds):
            raise StreamStoppedError

    def events(self, stream: ResponseStream[E, Any]) -> Iterator[E]:
        """Iterate over the events of a response."""
        while True:
            # The first line has a timeout of its own; for further lines, wait until there is one or no reader.
            while stream.timeout is None and not stream.wait_readable(settings.THREAD_POLL_SECONDS):
                self.sleep(0.0)
            try:
                yield next(stream)
            except StopIteration:
                return


def silent_context(host: str, stopped: threading.Event | None = None) -> StreamContext:
    """Return the context of a stream whose view shows by itself that a host is lost or back: nothing is printed."""
    return StreamContext(host, lambda text: None, stopped)


class _Kind(Enum):
    ITEM = 1
    WARNING = 2
    EXCEPTION = 3  # other than a ClusterError: a bug in tfcluster, raised where the user sees it
    END = 4


# What a host's thread passes to the caller's thread: the host, and a value of a kind.
_Entry = tuple[str, _Kind, Any]


def _pump(
    host: str,
    open_stream: Callable[[StreamContext], Iterator[Any]],
    entries: queue.Queue[_Entry],
    stopped: threading.Event,
) -> None:
    """Read the stream of one host and put its items into a queue, in a thread of its own."""

    def put(kind: _Kind, value: Any = None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                entries.put((host, kind, value), timeout=settings.THREAD_POLL_SECONDS)
                return
        raise StreamStoppedError

    with contextlib.suppress(StreamStoppedError):
        try:
            for item in open_stream(StreamContext(host, partial(put, _Kind.WARNING), stopped)):
                put(_Kind.ITEM, item)
        except StreamStoppedError:
            raise
        except ClusterError as error:
            put(_Kind.ITEM, error)
        except BaseException as error:
            put(_Kind.EXCEPTION, error)
        put(_Kind.END)


def merge_streams(
    streams: Mapping[str, Callable[[StreamContext], Iterator[T]]],
    timeout: float | None = None,
    background: Mapping[str, Callable[[StreamContext], Iterator[T]]] | None = None,
) -> Generator[tuple[str, T | ClusterError], None, None]:
    """Merge the streams of hosts, which are read in parallel; closing the generator ends all of them.

    Args:
        streams: A function that opens the stream, by host.
        timeout: The seconds after which all streams end.
        background: Further streams, which end with the last of `streams`.

    Yields:
        Each item with its host, in the order of arrival. A stream that fails ends with its ClusterError as last item.
    """
    entries: queue.Queue[_Entry] = queue.Queue(settings.RESPONSE_QUEUE_ITEMS)
    stopped = threading.Event()
    deadline = None if timeout is None else time.monotonic() + timeout
    for host, open_stream in {**streams, **(background or {})}.items():
        threading.Thread(target=_pump, args=(host, open_stream, entries, stopped), daemon=True).start()
    running = len(streams)
    try:
        while running:
            # A signal that arrives just before Python blocks in get() is handled when get() returns.
            remaining = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                host, kind, value = entries.get(timeout=min(remaining, settings.SIGNAL_POLL_SECONDS))
            except queue.Empty:
                if remaining == 0:
                    return
                continue
            if kind is _Kind.END:
                running -= host in streams
            elif kind is _Kind.EXCEPTION:
                raise value
            elif kind is _Kind.WARNING:
                warn(value)
            else:
                yield host, value
    finally:
        stopped.set()


def map_hosts(
    hosts: Iterable[str],
    function: Callable[[str], T],
    timeout: float | None,
    progress: Callable[[int], None] | None = None,
    find_lost: Callable[[T], ClusterError | None] | None = None,
) -> tuple[dict[str, T], dict[str, ClusterError]]:
    """Call a function for each host, for all hosts in parallel.

    Args:
        timeout: The timeout in seconds; None if the function has a timeout of its own.
        progress: Called each time a host is done, with the number of hosts that are done.
        find_lost: Have the error of a host that cannot be reached printed early, unless all other hosts are done in a
            moment. Returns this error if the function's value contains it, else None.

    Returns:
        The values that the function returned, and the errors that it raised, each by host in the order of `hosts`.
    """

    def call(context: StreamContext) -> Iterator[T | ClusterError]:
        outcome: T | ClusterError
        try:
            outcome = function(context.host)
        except ClusterError as error:
            outcome = error
        yield outcome
        if find_lost is None:
            return
        lost = outcome if isinstance(outcome, ClusterError) else find_lost(outcome)
        if lost is not None and lost.exit_code is ExitCode.UNREACHABLE:
            context.sleep(settings.HOST_ERROR_DELAY_SECONDS)  # this ends here once all other hosts are done
            context.warn(f"{lost.message}; waiting for the other hosts")

    names = list(hosts)
    outcomes: dict[str, T | ClusterError] = {}
    with contextlib.closing(merge_streams(dict.fromkeys(names, call), timeout)) as results:
        for host, outcome in results:
            outcomes[host] = outcome
            if progress is not None:
                progress(len(outcomes))
            if len(outcomes) == len(names):
                break
    outcomes |= {name: _timed_out(name, timeout or 0.0) for name in names if name not in outcomes}
    errors = {name: outcome for name in names if isinstance(outcome := outcomes[name], ClusterError)}
    return {name: outcome for name in names if not isinstance(outcome := outcomes[name], ClusterError)}, errors


def _timed_out(host: str, timeout: float) -> ClusterError:
    return ClusterError(
        f"host {host!r} has not answered within {timeout:g} s",
        hint="It may be busy: try again; `tfcluster status --timeout 120` waits longer.",
        exit_code=ExitCode.UNREACHABLE,
    )


def host_timeout(cluster: Cluster, timeout: float | None = None) -> float | None:
    """Return the seconds to wait for all hosts of a cluster; None if each request has a timeout of its own.

    That is so on this machine, where it reports an agent that hangs with its pid.
    """
    if cluster.is_local:
        return None
    return settings.HOST_TIMEOUT_SECONDS if timeout is None else timeout


def call_hosts(
    cluster: Cluster, hosts: Iterable[str], request: Request[Any, R], timeout: float | None
) -> tuple[dict[str, R], dict[str, ClusterError]]:
    """Send a request to hosts of a cluster in parallel, and return the replies and the errors; see `map_hosts`."""
    return map_hosts(hosts, lambda host: cluster.connect(host).call(request), timeout)


def unreachable(cluster: Cluster, errors: Mapping[str, ClusterError]) -> ClusterError:
    """Build the error for hosts of a cluster that cannot be reached, or report no state."""
    if cluster.is_local:
        return next(iter(errors.values()))
    return ClusterError(
        "\n".join(format_host_errors(cluster, errors)),
        hint=join_hints(errors) or f"`tfcluster status -c {cluster.name}` tries again.",
        exit_code=ExitCode.UNREACHABLE,
    )


def format_host_errors(cluster: Cluster, errors: Mapping[str, ClusterError]) -> list[str]:
    """Return the lines of the errors' messages, with the hosts' names unless the cluster is on this machine only."""
    if cluster.is_local:
        return [error.message for error in errors.values()]
    return [line for host, error in errors.items() for line in with_host(host, error.message)]


def combine_errors(
    cluster: Cluster, errors: Mapping[str, ClusterError], before: str = "", after: str = "", hint: str = ""
) -> ClusterError:
    """Build one error from those of hosts; `before` and `after` are more lines of its message, `hint` of its hint."""
    return ClusterError(
        "\n".join(filter(None, [before, *format_host_errors(cluster, errors), after])),
        hint=" ".join(filter(None, [join_hints(errors), hint])),
        exit_code=max(error.exit_code for error in errors.values()),
    )


def join_hints(errors: Mapping[str, ClusterError]) -> str:
    """Return the hints of errors in one text, each hint once."""
    return " ".join(dict.fromkeys(error.hint for error in errors.values() if error.hint))


def with_host(host: str, message: str) -> list[str]:
    """Return the lines of an error's message, each prefixed with the host's name unless it already has it."""
    named = f"host {host!r}"
    return [line if line.startswith(named) else f"{named}: {line}" for line in message.splitlines()]
