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
        run = None
        try:
            for event in connection.stream(Call.RUN, **asdict(self)):
                run = event.get("run", run)
                yield event
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            if run is not None:
                with contextlib.suppress(ClusterError):  # the cluster went down meanwhile, and the run with it
                    connection.call(Call.CANCEL, run=run)
            raise


def exit_code(result: dict[str, Any]) -> ExitCode:
    """The exit code of `run` for a run's result event."""
    if result["state"] == "succeeded":
        return ExitCode.DONE
    return ExitCode(result["error"]["exit_code"]) if "error" in result else ExitCode.FAILED
