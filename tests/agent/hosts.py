"""Two hosts on one machine, for tests: an agent each, with the conversation that the commands have with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from tests.conftest import Sandbox, wait_for
from tfcluster.client.rpc.agent_client import ResponseStream
from tfcluster.core.hosts import Host
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.runs import RunOptions
from tfcluster.core.topology import ClusterTopology, RestartPolicy, Task
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Done, Request
from tfcluster.protocol.api.cluster import (
    ApplyRequest,
    DownRequest,
    ObserveRequest,
    Preparation,
    PrepareRequest,
    StatusRequest,
)
from tfcluster.protocol.api.logs import EventEvent, EventsRequest
from tfcluster.protocol.api.runs import EventRecord, RunRequest
from tfcluster.protocol.serialization import to_json
from tfcluster.transport.local import LocalTransport

CLUSTER = "two"
#: The parameters of a run of pi.
PI = {"samples": 1_000_000, "seed": 7}
POLICY = RestartPolicy("on-failure", initial=0.1, max=30.0, limit=5, window=60.0)


def task_of(short: str, host: str, **fields: Any) -> Task:
    """A task of a topology for tests, as `worker:1` on a host."""
    job, _, index = short.partition(":")
    task = Task(job, int(index), host, "localhost", None, cpus=1, gpus=0, env={}, restart=POLICY)
    return replace(task, **fields)


#: worker:0 is the head, on a; the ps and another worker are on b.
TASKS = (task_of("ps:0", "b"), task_of("worker:0", "a"), task_of("worker:1", "b"))


def shorts(status: Any) -> list[str]:
    return [f"{task['job']}:{task['index']}" for task in status["tasks"]]


def topology_of(
    tasks: Sequence[Task] = TASKS, *, names: str = "ab", warm: bool = False, **fields: Any
) -> ClusterTopology:
    """A topology of tasks on the hosts a and b, or those that each letter of `names` is; all are this machine."""
    hosts = tuple(Host(name, "localhost") for name in names)
    return ClusterTopology(CLUSTER, "cluster.yaml", "closed", tuple(tasks), hosts=hosts, warm=warm, **fields)


E = TypeVar("E")
R = TypeVar("R")


def run_request(program: str, parameters: Mapping[str, Any], **arguments: Any) -> RunRequest:
    options = RunOptions(program, dict(parameters), timeout=120.0)
    own = {each.name: arguments.pop(each.name) for each in fields(options) if each.name in arguments}
    return replace(RunRequest(replace(options, **own), detach=False, cancel_on_disconnect=True), **arguments)


@dataclass
class Hosts:
    sandbox: Sandbox
    topology: ClusterTopology = field(default_factory=topology_of)  # what is up
    streams: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def stream(self, host: str, request: Request[E, R], *, start: bool = False) -> ResponseStream[E, R]:
        """Send a request to a host's agent."""
        transport = LocalTransport(CLUSTER, host)
        return ResponseStream(transport, transport.open(start=start), request)

    def ask(self, host: str, request: Request[Any, Any], *, start: bool = False) -> Any:
        with contextlib.closing(self.stream(host, request, start=start)) as response:
            return to_json(response.result())

    def prepare(self, desired: ClusterTopology) -> dict[str, Any]:
        """What PREPARE says, by host."""
        self.topology = desired
        return {host.name: to_json(next(self.hold(host.name, desired))) for host in desired.hosts}

    def observe(self, host: str) -> ObservedState | None:
        """What OBSERVE says; the agent runs until `release`."""
        stream = self.streams.enter_context(contextlib.closing(self.stream(host, ObserveRequest(), start=True)))
        return stream.result().observed

    def hold(
        self, host: str, topology: ClusterTopology, *, listens: bool = False
    ) -> ResponseStream[Preparation, NoReturn]:
        """The response to PREPARE; the agent runs, and with `listens` it listens, until it is closed or `release`."""
        stream = self.stream(host, PrepareRequest(topology, listens), start=True)
        return self.streams.enter_context(contextlib.closing(stream))

    def release(self) -> None:
        """Close what `observe` and `hold` have opened."""
        self.streams.close()

    def up(self, desired: ClusterTopology) -> None:
        """Bring the cluster up, and wait until all its tasks are ready."""
        self.apply(self.prepare(desired))

    def apply(self, prepared: Mapping[str, Any]) -> None:
        """The same, with what PREPARE has said before."""
        assert all(reply["problems"] == [] for reply in prepared.values())
        for reply in prepared.values():
            allocation = reply["allocation"]
            self.topology = self.topology.with_allocation(allocation["ports"], allocation["gpus"])
        for host in prepared:
            assert self.ask(host, change(self.topology, None), start=True) == {"conflict": None}
        self.release()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_for(lambda: all(self.status(host.name)["state"] == "running" for host in self.topology.hosts), 60)

    def status(self, host: str) -> Any:
        return self.ask(host, StatusRequest())["status"]

    def task(self, short: str) -> Any:
        job, _, index = short.partition(":")
        (host,) = {task.host for task in self.topology.tasks if task.short == short}
        tasks = self.status(host)["tasks"]
        return next(task for task in tasks if (task["job"], task["index"]) == (job, int(index)))

    def events(self, host: str) -> list[Any]:
        """What happened on a host, where the cluster may be down by now."""
        response = self.stream(host, EventsRequest(None, None, follow=False, after={}), start=True)
        events = [to_json(event.line) for event in response if isinstance(event, EventEvent)]
        response.close_and_reap()
        return events

    def run(self, program: str, parameters: Mapping[str, Any], **arguments: Any) -> ResponseStream[EventRecord, Done]:
        return self.stream("a", run_request(program, parameters, **arguments))

    def result(self, run: ResponseStream[EventRecord, Done]) -> Any:
        with contextlib.closing(run):
            return list(run)[-1].record

    def down(self, host: str) -> None:
        try:
            response = self.stream(host, DownRequest(1.0))
            response.result()
            response.close_and_reap()
        except ClusterError as error:
            if error.exit_code is not ExitCode.NOT_RUNNING:
                raise

    def state_folder(self, host: str) -> Path:
        return self.sandbox.folder / "state" / "tfcluster" / CLUSTER / host


def change(topology: ClusterTopology, observed: ObservedState | None) -> ApplyRequest:
    """The request to carry out a plan that was made from an observed state."""
    return ApplyRequest(observed.revision if observed else None, topology, "", None, ())


@contextlib.contextmanager
def hosts_in(sandbox: Sandbox) -> Iterator[Hosts]:
    """The hosts of a sandbox, with this process in it as a command would be; both are down afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sandbox.environment.items():
            patch.setenv(name, value)
        hosts = Hosts(sandbox)
        try:
            yield hosts
        finally:
            hosts.release()
            for host in "ab":
                hosts.down(host)
