"""Submitting a run of a program and following it, also from one agent to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from tfcluster.client.cluster import Cluster
from tfcluster.client.interrupts import GracefulInterrupt, RunCanceller
from tfcluster.client.lease import keep_leases_alive
from tfcluster.client.parallel import StreamContext
from tfcluster.client.placements import Placements
from tfcluster.client.reconnect import ReconnectPolicy
from tfcluster.client.rpc import AgentDisconnectedError, ResponseStream
from tfcluster.core.programs import SCRIPT
from tfcluster.errors import ExitCode
from tfcluster.protocol.api import Method
from tfcluster.transport.base import not_running

Event = dict[str, Any]

#: So many agents may die one after the other, with no event between them, before there is no point in another.
_AGENTS = 4
#: Seconds between two looks at what servers print.
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class RunRequest:
    """What to run.

    Attributes:
        program: A bundled program.
        parameters: Its own parameters.
        patterns: TensorFlow device strings to choose devices by; none leaves it to the cluster.
        gpus: How many GPU devices to use; None leaves it to what there is.
        strict: Fewer GPUs than asked for is an error.
        timeout: Seconds after which the run is stopped, from its submission on; None for no bound.
        log_placement: Have each operation's placement told, as the servers print it.
        detach: Leave the run alone once it is on its way.
        sent: An open file to send to the run; None for none.
        sent_as: What the file is called there.
    """

    program: str
    parameters: dict[str, Any]
    patterns: list[str]
    gpus: int | None
    strict: bool
    timeout: float | None
    log_placement: bool = False
    detach: bool = False
    sent: BinaryIO | None = None
    sent_as: str = "sent"

    def events(self, cluster: Cluster) -> Generator[Event, None, None]:
        """Run it and give its events up to the result; an interrupt cancels the run.

        Of a run that is detached the first event only, unless it has ended by then. A run on another host goes on
        while the connection to it is lost, and is followed again as soon as it is back.

        Raises:
            ClusterError: It could not be started; or it could not be cancelled, and goes on.
        """
        connection = cluster.leader()
        owned = not connection.elsewhere
        cancelling = RunCanceller(cluster)
        # Before the run: what is printed from now on can be the run's.
        placements = Placements(cluster) if self.log_placement and not self.detach else None
        answer = connection.stream(
            Method.RUN,
            program=self.program,
            parameters=self.parameters,
            patterns=self.patterns,
            gpus=self.gpus,
            strict=self.strict,
            timeout=self.timeout,
            log_placement=self.log_placement,
            detach=self.detach,
            owned=owned,
            sent=None if self.sent is None else self.sent_as,
        )
        # Hanging up before the result, for whatever reason, cancels the run too; on another host that is to be said,
        # as a connection can be lost.
        with GracefulInterrupt(cancelling.cancel) as interrupt, contextlib.closing(answer):
            first = next(answer)
            run = cancelling.run = str(first["run"])
            with contextlib.nullcontext() if owned or self.detach else cancelling:
                yield first
                if self.sent is not None:
                    answer.send_file(self.sent)
                if placements is not None and self.program != SCRIPT:
                    placements.only_those_of(run)
                yield from _follow(cluster, answer, run, events=1, owned=owned, placements=placements)
        interrupt.raise_if_any()


def attach(cluster: Cluster, run: str) -> Generator[Event, None, None]:
    """The events of a run from its first to its result; the run goes on whether or not they are read.

    Args:
        cluster: Its cluster; it may be down.
        run: Its id, or a unique beginning of it.

    Raises:
        ClusterError: There is no such run.
    """
    connection = cluster.leader()
    if not connection.reach.has_state():
        raise not_running(cluster.name)
    answer = connection.stream(Method.ATTACH, start=True, run=run, events=0, output=0, owned=False)
    return _follow(cluster, answer, run, events=0, owned=False)


def _follow(
    cluster: Cluster,
    answer: ResponseStream,
    run: str,
    *,
    events: int,
    owned: bool,
    placements: Placements | None = None,
) -> Generator[Event, None, None]:
    """The events of a run up to its result: when its agent is lost the next one goes on where that stopped."""
    output = 0
    connection = cluster.leader()
    lasting = ReconnectPolicy(connection, StreamContext(connection.reach.host), _AGENTS)
    with keep_leases_alive(cluster):
        while True:
            try:
                for event in answer if placements is None else _among(answer, placements):
                    if event["event"] == "placement":
                        yield event
                        continue
                    lasting.heard()
                    run = event.get("run", run)
                    if event["event"] == "output":
                        output += 1
                    else:
                        events += 1
                    yield event
                return
            except AgentDisconnectedError as error:
                lasting.lost(error)
            finally:
                answer.leave()  # an agent that was started for this ends before it does
            place = {"run": run, "events": events, "output": output}
            answer = lasting.opened(partial(connection.stream, Method.ATTACH, start=True, owned=owned, **place))


def _among(answer: ResponseStream, placements: Placements) -> Generator[Event, None, None]:
    """The events of a run, and among them the placements, all of them before the result."""
    while True:
        while not answer.arrives_within(_LOOK_SECONDS):
            yield from placements.news()
        try:
            event = next(answer)
        except StopIteration:
            return
        if event["event"] == "result":
            yield from placements.news(last=True)  # a server prints where it places an operation before it runs it
        yield event


def exit_code(result: Event) -> ExitCode:
    """The exit code of `run` for a run's result event."""
    if result["state"] == "succeeded":
        return ExitCode.DONE
    return ExitCode(result["error"]["exit_code"]) if "error" in result else ExitCode.FAILED
