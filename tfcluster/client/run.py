"""Submitting a run of a program and following it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import FrameType
from typing import Any, BinaryIO

from tfcluster.client.connection import Connection
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.messages import Call


@dataclass(frozen=True)
class Submission:
    """What to run.

    Attributes:
        program: A bundled program.
        parameters: Its own parameters.
        patterns: TensorFlow device strings to choose devices by; none leaves it to the cluster.
        gpus: How many GPU devices to use; None leaves it to what there is.
        strict: Fewer GPUs than asked for is an error.
        timeout: Seconds after which the run is stopped, from its submission on; None for no bound.
        sent: An open file to send to the run; None for none.
        sent_as: What the file is called there.
    """

    program: str
    parameters: dict[str, Any]
    patterns: list[str]
    gpus: int | None
    strict: bool
    timeout: float | None
    sent: BinaryIO | None = None
    sent_as: str = "sent"

    def events(self, cluster: str) -> Generator[dict[str, Any], None, None]:
        """Run it and give its events up to the result; an interrupt cancels the run.

        Raises:
            ClusterError: It could not be started.
        """
        connection = Connection(cluster)
        run: str | None = None

        def cancel() -> bool:
            if run is None:
                return False
            with contextlib.suppress(ClusterError):  # the cluster went down meanwhile, and the run with it
                connection.call(Call.CANCEL, run=run)
            return True

        answer = connection.stream(
            Call.RUN,
            program=self.program,
            parameters=self.parameters,
            patterns=self.patterns,
            gpus=self.gpus,
            strict=self.strict,
            timeout=self.timeout,
            sent=None if self.sent is None else self.sent_as,
        )
        # Hanging up before the result, for whatever reason, cancels the run too.
        with _FirstInterrupt(cancel) as interrupt, contextlib.closing(answer):
            for event in answer:
                first, run = run is None, event.get("run", run)
                yield event
                if first and self.sent is not None:
                    answer.send_file(self.sent)
        interrupt.raise_if_any()


class _FirstInterrupt:
    """Has the first SIGINT or SIGTERM cancel a run whose events are read on, to its result; a second one ends it.

    An exception out of the signal's handler would strike anywhere, also between an event's arrival and its showing.
    """

    def __init__(self, cancel: Callable[[], bool]) -> None:
        self._cancel = cancel
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _FirstInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def raise_if_any(self) -> None:
        """Raise what the signal would have raised.

        Raises:
            KeyboardInterrupt: SIGINT came.
            SystemExit: SIGTERM came.
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


def exit_code(result: dict[str, Any]) -> ExitCode:
    """The exit code of `run` for a run's result event."""
    if result["state"] == "succeeded":
        return ExitCode.DONE
    return ExitCode(result["error"]["exit_code"]) if "error" in result else ExitCode.FAILED
