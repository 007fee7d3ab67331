"""Submitting a run of a program and following it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import asdict, dataclass
from typing import Any

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
        timeout: Seconds after which the run is stopped; None for no bound.
    """

    program: str
    parameters: dict[str, Any]
    patterns: list[str]
    gpus: int | None
    strict: bool
    timeout: float | None

    def events(self, cluster: str) -> Generator[dict[str, Any], None, None]:
        """Run it and give its events up to the result; an interrupt cancels the run.

        Raises:
            ClusterError: It could not be started.
        """
        connection = Connection(cluster)
        answer = connection.stream(Call.RUN, **asdict(self))
        interrupt: BaseException | None = None
        run = None
        while True:
            try:
                event = next(answer, None)
            except (KeyboardInterrupt, SystemExit) as error:
                if run is None or interrupt is not None:
                    raise
                interrupt = error
                _cancel(connection, run)
                continue  # the result says how far it came
            if event is None:
                break
            run = event.get("run", run)
            try:
                yield event
            except GeneratorExit:  # whoever shows the events was interrupted
                _cancel(connection, run)
                raise
        if interrupt is not None:
            raise interrupt


def _cancel(connection: Connection, run: str | None) -> None:
    with contextlib.suppress(ClusterError):  # the cluster went down meanwhile, and the run with it
        connection.call(Call.CANCEL, run=run)


def exit_code(result: dict[str, Any]) -> ExitCode:
    """The exit code of `run` for a run's result event."""
    if result["state"] == "succeeded":
        return ExitCode.DONE
    return ExitCode(result["error"]["exit_code"]) if "error" in result else ExitCode.FAILED
