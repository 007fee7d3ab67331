"""The calls of `up`: examine the host, and start what is to be started."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from tfcluster.agent.examination import examine
from tfcluster.agent.gpus import gpu_ids
from tfcluster.agent.ports import Ports
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.model.counting import plural
from tfcluster.model.layout import Layout
from tfcluster.model.plan import already_up
from tfcluster.model.status import ClusterStatus
from tfcluster.protocol.framing import Message
from tfcluster.protocol.messages import reply
from tfcluster.runtime.c_api import TensorFlow


class Changes:
    """Answers the calls that change what is up.

    Attributes:
        awaited: Without a cluster yet, but prepared for the one that the next request brings.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        ports: Ports,
        load: Callable[[], TensorFlow],
        status: Callable[[], ClusterStatus],
        refuse_when_going_down: Callable[[], None],
    ) -> None:
        self.awaited = False
        self._supervisor = supervisor
        self._ports = ports
        self._load = load
        self._status = status
        self._refuse_when_going_down = refuse_when_going_down

    async def prepare(self, layout: dict[str, Any], dry: bool) -> AsyncIterator[Message]:
        """Examine the host for a layout, or tell what is up already."""
        self._refuse_when_going_down()
        self._supervisor.start_helpers()
        tensorflow = self._load()
        found = self._supervisor.layout
        if found is None:
            choices = examine(Layout.from_json(layout), self._ports, gpu_ids())
            self.awaited = self.awaited or not dry
            yield reply({"tensorflow": tensorflow.version, "choices": asdict(choices), "found": None})
        else:
            up = {"layout": found.to_json(), "status": self._status().to_json()}
            yield reply({"tensorflow": tensorflow.version, "choices": None, "found": up})

    async def apply(self, wanted: dict[str, Any], layout: dict[str, Any], start: list[str]) -> AsyncIterator[Message]:
        """Start tasks of a layout."""
        self._refuse_when_going_down()
        complete, found = Layout.from_json(layout), self._supervisor.layout
        if found is None:
            self._supervisor.history.record("up", detail=f"{plural(len(start), 'task')}, agent {os.getpid()}")
            self._ports.keep_only([task.port for task in complete.tasks if task.port])
        elif not Layout.from_json(wanted).same_cluster_as(found):  # another `up` was first
            raise already_up(complete, found)
        self._supervisor.apply(complete, start)
        yield reply({})
