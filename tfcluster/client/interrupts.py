"""Cancelling the run that a command follows, when the command is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Method

# An interrupted command says within so many seconds whether its run on another host is cancelled.
_CANCEL_SECONDS = 5.0


class RunCanceller:
    """Has a run cancelled by its cluster's leading agent.

    As a context, it has it cancelled where its body does not come to its end.

    Args:
        cluster: The cluster.

    Attributes:
        run: The run; None while it is not known.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.run: str | None = None
        self._cluster = cluster
        self._asked = False

    def cancel(self) -> bool:
        """Ask for it; whether there is a run to cancel.

        Raises:
            ClusterError: Its host cannot be reached, and it goes on there.
        """
        if self.run is None:
            return False
        self._asked = True
        run, head = self.run, self._cluster.head
        # By a connection of its own: the one that is read may be lost.
        told = map_hosts(
            [head], lambda host: self._cluster.connect(host).call(Method.CANCEL, run=run), _CANCEL_SECONDS
        )[head]
        # Any other error: the cluster went down meanwhile, and the run with it.
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
    """Has the first SIGINT, SIGTERM or SIGHUP cancel a run whose events are read on; a second one ends the reading.

    An exception out of the signal's handler would strike anywhere, also between an event's arrival and its showing.
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
        """Raise what the signal would have raised.

        Raises:
            KeyboardInterrupt: SIGINT came.
            SystemExit: SIGTERM or SIGHUP came.
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
