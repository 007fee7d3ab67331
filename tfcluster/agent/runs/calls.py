"""The calls about runs: start one and follow it, cancel one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tfcluster.agent.folder import StateFolder
from tfcluster.agent.incoming import Incoming
from tfcluster.agent.runs.receiving import check_name, receive
from tfcluster.agent.runs.runs import Run, Runs
from tfcluster.agent.tasks.supervised import Supervised
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.devices import select
from tfcluster.protocol.framing import Message
from tfcluster.protocol.messages import event, reply
from tfcluster.runtime.driver import Job

_PROBE_BEFORE_RUN = 1.0


class RunCalls:
    """Answers the calls about runs.

    Args:
        folder: The cluster's state folder.
        supervisor: The tasks to run on.
        runs: The runs.
        refuse_when_going_down: Raises a ClusterError while the cluster goes down.
    """

    def __init__(
        self, folder: StateFolder, supervisor: Supervisor, runs: Runs, refuse_when_going_down: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._runs = runs
        self._refuse_when_going_down = refuse_when_going_down

    async def run(
        self,
        incoming: Incoming,
        program: str,
        parameters: dict[str, Any],
        patterns: list[str],
        gpus: int | None,
        strict: bool,
        timeout: float | None,
        sent: str | None,
    ) -> AsyncIterator[Message]:
        """Start a run and give its events up to the result."""
        self._refuse_when_going_down()
        layout = self._supervisor.layout_that_is_up()
        _refuse_when_down(await self._supervisor.check_now(_PROBE_BEFORE_RUN))
        self._refuse_when_going_down()
        found = [device for task in self._supervisor.tasks.values() for device in task.devices]
        selection = select(found, patterns=patterns, gpus=gpus, strict=strict)
        identity = self._new_run(program)
        job = Job(
            run=identity,
            cluster=layout.cluster,
            program=program,
            folder=str(self._folder.runs / identity),
            addresses=layout.addresses(),
            head=layout.head().address,
            devices=[device.name for device in selection.devices],
            parameters=parameters,
            notes=list(selection.notes),
            sent=None if sent is None else check_name(sent),
        )
        run = self._runs.submit(job, timeout)
        starting = asyncio.ensure_future(self._start(run, incoming))
        try:
            async for each in self._runs.follow(run):
                yield event(each)
        finally:
            # Nothing, unless the command has gone without a word (a closed terminal): nobody waits for the result.
            starting.cancel()
            self._runs.cancel(identity)
        yield reply({})

    async def _start(self, run: Run, incoming: Incoming) -> None:
        """Start a run's driver once the file that is sent with it, if there is one, has come."""
        try:
            if (path := run.job.sent_path) is not None:
                await receive(incoming, path)
        except ConnectionError:
            self._runs.cancel(run.job.run)
        except ClusterError as problem:
            self._runs.fail(run, problem)
        else:
            self._runs.start(run)

    async def cancel(self, run: str) -> AsyncIterator[Message]:
        """Stop a run."""
        self._runs.cancel(run)
        yield reply({})

    def _new_run(self, program: str) -> str:
        """A new run's id, with its folder made."""
        identity = f"{program}-{secrets.token_hex(2)}"
        while not self._runs.make_folder(identity):
            # Four digits are easy to type; an earlier run has them, so more are needed by now.
            identity = f"{program}-{secrets.token_hex(4)}"
        return identity


def _refuse_when_down(tasks: Sequence[Supervised]) -> None:
    if tasks:
        raise ClusterError(
            "; ".join(task.trouble() for task in tasks),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` what one said last.",
            exit_code=ExitCode.UNHEALTHY,
        )
