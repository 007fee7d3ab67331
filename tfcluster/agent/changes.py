"""The calls of `up` and `scale`: examine the host, and carry a plan out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from tfcluster.agent.examination import examine, hold_ports
from tfcluster.agent.gpus import gpu_ids
from tfcluster.agent.ports import Ports
from tfcluster.agent.runs.runs import Runs
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.errors import ClusterError
from tfcluster.model.change import Found, onto
from tfcluster.model.counting import plural
from tfcluster.model.layout import Layout
from tfcluster.model.plan import RESTART, START, STOP, UPDATE, losses, only_starts, plan, summary
from tfcluster.model.states import AT_REST
from tfcluster.model.status import ClusterStatus
from tfcluster.protocol.framing import Message
from tfcluster.protocol.messages import event, reply
from tfcluster.runtime.c_api import TensorFlow

#: Seconds between TERM and KILL for a task that is stopped or restarted.
_GRACE = 5.0


class Changes:
    """Answers the calls that change what is up.

    Attributes:
        awaited: Without a cluster yet, but prepared for the one that the next request brings.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        ports: Ports,
        runs: Runs,
        load: Callable[[], TensorFlow],
        status: Callable[[], ClusterStatus],
        refuse_when_going_down: Callable[[], None],
    ) -> None:
        self.awaited = False
        self._supervisor = supervisor
        self._ports = ports
        self._runs = runs
        self._load = load
        self._status = status
        self._refuse_when_going_down = refuse_when_going_down
        self._under_way: asyncio.Task[None] | None = None

    async def layout(self) -> AsyncIterator[Message]:
        """Tell what is up."""
        await self.settled()
        yield reply(self._supervisor.layout_that_is_up().to_json())

    async def prepare(self, layout: dict[str, Any], dry: bool) -> AsyncIterator[Message]:
        """Examine the host for a layout, and tell what is up already."""
        await self.settled()
        self._refuse_when_going_down()
        self._supervisor.checks.start()
        tensorflow = self._load()
        wanted, found = Layout.from_json(layout), self._found()
        if found is None:
            choices = examine(wanted, self._ports, gpu_ids())
            self.awaited = self.awaited or not dry
        else:
            ours, before = found.layout.ports(), self._ports.held
            try:
                choices = examine(onto(wanted, found), self._ports, gpu_ids(), ours)
            finally:  # the new ones are held when the plan is carried out, if it ever is
                self._ports.keep_only({*before, *ours})
        yield reply(
            {
                "tensorflow": tensorflow.version,
                "choices": asdict(choices),
                "found": found.to_json() if found else None,
            }
        )

    async def apply(
        self, wanted: dict[str, Any], base: dict[str, Any] | None, layout: dict[str, Any], lost: list[str] | None
    ) -> AsyncIterator[Message]:
        """Carry out the plan that leads to a layout; goes on to its end also when the command that asked dies.

        Args:
            wanted: The layout that is wanted, before anything was chosen.
            base: The layout that the plan was made from; None when there was none.
            layout: The layout that the plan leads to.
            lost: What may be lost by it; None for anything.
        """
        await self.settled()
        self._refuse_when_going_down()
        complete, found = Layout.from_json(layout), self._found()
        self.awaited = False
        if found is None:
            if base is not None:
                self._supervisor.layout_that_is_up()  # it went down meanwhile
            self._start_anew(complete)
            yield reply({})
            return
        if base is None or Layout.from_json(base) != found.layout:
            complete = onto(Layout.from_json(wanted), found)
            if not only_starts(plan(complete, found), found):
                raise _changed_meanwhile(complete, found)
        if lost is not None and (more := set(losses(plan(complete, found))) - set(lost)):
            raise _more_is_lost(complete, sorted(more))
        hold_ports(complete, self._ports, found.layout.ports())
        under_way = self._under_way = asyncio.ensure_future(self._carry_out(complete, found))
        async for _ in self._supervisor.changed.until(under_way):
            yield event(self._status().to_json())
        if under_way.cancelled():
            self._refuse_when_going_down()
        under_way.result()
        yield reply({})

    async def settled(self) -> None:
        """Wait until no plan is being carried out."""
        while self._under_way is not None and not self._under_way.done():
            await asyncio.wait({self._under_way})

    async def abandon(self) -> None:
        """Leave what is being carried out: the cluster goes down."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait({self._under_way})  # however it ended, or had ended before

    def _start_anew(self, layout: Layout) -> None:
        self._supervisor.history.record("up", detail=f"{plural(len(layout.tasks), 'task')}, agent {os.getpid()}")
        self._ports.keep_only(layout.ports())
        self._supervisor.apply(layout, [task.name for task in layout.tasks])

    async def _carry_out(self, layout: Layout, found: Found) -> None:
        """Stop what the layout has no more or otherwise, then take it over and start what it has new.

        Until all of that has stopped the journal knows the old layout: an agent that dies meanwhile is followed by
        one that has the old cluster with some tasks stopped, and the next `up` goes on from there.
        """
        operations = plan(layout, found)
        try:
            # A server that died and came back meanwhile knows only the old addresses: look again.
            while stopping := self._to_be_stopped(layout):
                await self._supervisor.stop(_GRACE, stopping)
            now = self._found_now()
            start = [
                operation.task.name
                for operation in plan(layout, now)
                if operation.kind == START and operation.task is not None
            ]
            updates = dict.fromkeys(operation.cause for operation in operations if operation.kind == UPDATE)
            told = ", ".join([summary(operations), *updates]).removeprefix(", ")
            self._supervisor.history.record("changed", detail=told)
            self._supervisor.apply(layout, start)
        finally:
            self._ports.keep_only(self._supervisor.layout_that_is_up().ports())

    def _to_be_stopped(self, layout: Layout) -> list[str]:
        """The tasks that must not run on if the layout is to be taken over."""
        found = self._found_now()
        at_rest = {status.task for status in found.tasks if status.state in AT_REST}
        return [
            operation.task.name
            for operation in plan(layout, found)
            if operation.kind in (STOP, RESTART) and operation.task is not None and operation.task.name not in at_rest
        ]

    def _found(self) -> Found | None:
        return None if self._supervisor.layout is None else self._found_now()

    def _found_now(self) -> Found:
        return Found(
            layout=self._supervisor.layout_that_is_up(),
            tasks=self._status().tasks,
            generations=self._supervisor.generations(),
            runs=self._runs.tasks_in_use(self._supervisor.tasks),
        )


def _changed_meanwhile(wanted: Layout, found: Found) -> ClusterError:
    return ClusterError(
        f"cluster {wanted.cluster!r} was changed by another command meanwhile (it has {found.layout.spec} now): "
        "nothing was done",
        hint="Run the command again: it plans from what is up now.",
    )


def _more_is_lost(wanted: Layout, more: list[str]) -> ClusterError:
    return ClusterError(
        f"cluster {wanted.cluster!r} has changed since the plan was made, which would lose {', '.join(more)}: "
        "nothing was done",
        hint="Run the command again: it plans from what is up now.",
    )
