"""Handle signals (SIGINT, SIGTERM, SIGHUP) while a command follows a run: cancel the run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Method


class RunCanceller:
    """Cancels a run through the agent on the head's host.

    As a context manager, it cancels the run if its body raises an exception.

    Args:
        cluster: The cluster.

    Attributes:
        run: The id of the run; None until it is known.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.run: str | None = None
        self._cluster = cluster
        self._asked = False

    def cancel(self) -> bool:
        """Cancel the run.

        Returns:
            Whether there is a run to cancel.

        Raises:
            ClusterError: The run's host cannot be reached, and the run continues there.
        """
        if self.run is None:
            return False
        self._asked = True
        run, head = self.run, self._cluster.head
        # Use a new connection: the one from which the events are read may be lost.
        told = map_hosts(
            [head],
            lambda host: self._cluster.connect(host).call(Method.CANCEL, run=run),
            settings.CANCEL_TIMEOUT_SECONDS,
        )[head]
        # Any other error means that the cluster went down meanwhile, which ended the run too.
        if isinstance(told, ClusterError) and told.exit_code is ExitCode.UNREACHABLE:
            raise ClusterError(
                f"run {run} goes on: {told.message}",
                hint=f"When the host is back, `tfcluster cancel {run}` stops it, `tfcluster attach {run}` shows it.",
                exit_code=ExitCode.UNREACHABLE,
            )
        return True

    def __enter__(self) -> RunCanceller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._asked:
            self.cancel()


class GracefulInterrupt:
    """A context manager whose first SIGINT, SIGTERM or SIGHUP cancels a run while its events are still being read.

    A second signal ends the reading too. The handler of the first one raises no exception, because an exception from a
    signal handler can occur anywhere, also between receiving an event and showing it.

    Args:
        cancel: Cancels the run; returns whether there is a run to cancel. If there is none, the handler raises at once.
    """

    def __init__(self, cancel: Callable[[], bool]) -> None:
        self._cancel = cancel
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> GracefulInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:  # started by nohup
                continue
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def raise_if_any(self) -> None:
        """Raise the exception that the received signal would have raised; do nothing if there was no signal.

        Raises:
            KeyboardInterrupt: SIGINT was received.
            SystemExit: SIGTERM or SIGHUP was received.
        """
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise SystemExit(int(ExitCode.TERMINATED))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self._received is not None
        self._received = number
        if again or not self._cancel():
            self.raise_if_any()
