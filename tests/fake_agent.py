"""An agent that the test plays: it answers the requests of commands, on real sockets, and has no tasks.

Its answers are the product's own types. Unlike an agent, it can be unreachable, silent, of another version, and break
off within a response.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.core.clusters import observed_on, observed_state, with_ports
from tfcluster.core.hosts import Host
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.states import HostState, RunState, TaskState
from tfcluster.core.status import ClusterStatus, HostStatus, LastExit, RunStatus, aggregate_status, unknown_task_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.core.usage import HostUsage
from tfcluster.errors import ClusterError
from tfcluster.os.unix_socket import socket_address
from tfcluster.paths import LOCAL_HOST, journal_path, make_private_folder, socket_path, state_folder
from tfcluster.protocol.api import Done, Reply, Request, decode_request, processes, view  # noqa: F401 - their requests
from tfcluster.protocol.api.cluster import (
    Allocation,
    ApplyReply,
    ApplyRequest,
    DownReply,
    DownRequest,
    Observation,
    ObserveRequest,
    Preparation,
    PrepareRequest,
    ReachReply,
    ReachRequest,
    RestartRequest,
    StatusReply,
    StatusRequest,
    TopologyRequest,
    UsageRequest,
    WatchRequest,
)
from tfcluster.protocol.api.logs import ClusterEvent, EventEvent, EventsRequest, LogEvent, LogLine, LogsRequest
from tfcluster.protocol.api.runs import (
    CancelReply,
    CancelRequest,
    FailingRunsReply,
    FailingRunsRequest,
    RunsReply,
    RunsRequest,
    RunSummary,
)
from tfcluster.protocol.codec import MessageDecoder, encode, encode_greeting
from tfcluster.protocol.serialization import to_json
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.local import LocalAgentConnection, LocalTransport
from tfcluster.transport.remote_transport import HostReport

T = TypeVar("T", bound=Request[Any, Any])
TENSORFLOW = "2.21.0"
#: The name of the threads of agents.
THREAD = "fake agent"


@dataclass(frozen=True)
class Silence:
    """A part of an answer: nothing is sent for some time, or until the command hangs up."""

    seconds: float | None = None


WAIT = Silence()
#: Events, and last a `Reply` or a ClusterError. Bytes are sent as they are. Without a last line, the agent hangs up.
Answer = Iterable[object]
#: Returns the answer to a request to a host.
Answering = Callable[[T, str], Answer]


@dataclass
class FakeAgent:
    """The agents of all hosts of all clusters; `up` has the topology of each cluster that runs."""

    up: dict[str, ClusterTopology] = field(default_factory=dict)
    states: dict[str, TaskState] = field(default_factory=dict)  # of the tasks that are not ready, by their short names
    last_exit: LastExit | None = None  # of each task
    started: float | None = None  # when the clusters were started
    runs: list[RunSummary] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    events: list[ClusterEvent] = field(default_factory=list)
    away: set[str] = field(default_factory=set)  # the hosts that cannot be reached
    contacted: set[str] = field(default_factory=set)  # the hosts elsewhere that a command has tried to reach
    greeting: bytes = field(default_factory=encode_greeting)
    hang_ups: int = 0  # how many of the next connections end before the greeting
    requests: list[tuple[str, Request[Any, Any]]] = field(default_factory=list)  # each with its host, as they arrived
    _answers: dict[type[Request[Any, Any]], list[Answer | Answering[Any]]] = field(default_factory=dict)
    _listeners: dict[tuple[str, str], socket.socket] = field(default_factory=dict)

    def answer(self, kind: type[T], *answers: Answer | Answering[T]) -> None:
        """Answer the requests of a kind, one after another, by these in place of the usual one; the last one stays."""
        self._answers[kind] = [*answers]

    def usual(self, request: Request[Any, Any], host: str) -> Answer:
        """Return the answer of an agent without troubles, for a cluster that is the only one."""
        ((cluster, _),) = {(name, host) for name, _ in self._listeners}
        return self._usual_answer(request, cluster, host)

    def asked(self, kind: type[T]) -> list[T]:
        """Return the requests of a kind that have arrived."""
        return [request for _, request in self.requests if isinstance(request, kind)]

    def start(self, cluster: str, host: str = LOCAL_HOST) -> None:
        """Listen as the agent of a cluster on a host."""
        path = socket_path(cluster, host)
        make_private_folder(path.parent)
        path.unlink(missing_ok=True)
        listener = self._listeners[cluster, host] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(path) as address:
            listener.bind(address)
        listener.listen()
        threading.Thread(target=self._accept, args=[listener, cluster, host], name=THREAD, daemon=True).start()

    def stop(self) -> None:
        """End all agents, as if they had been killed."""
        while self._listeners:
            _, listener = self._listeners.popitem()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # without it, accept() would continue to wait
            listener.close()

    def bring_up(self, topology: ClusterTopology) -> None:
        """Have a cluster run, with an agent on each of its hosts."""
        self.up[topology.cluster] = with_ports(topology)
        for host in topology.hosts:
            self.start(topology.cluster, host.name)
            journal_path(topology.cluster, host.name).touch()

    def status(self, cluster: str, host: str) -> ClusterStatus:
        """Return what the agent on a host reports."""
        topology = self.up[cluster]
        tasks = tuple(
            replace(
                unknown_task_status(task, self.states.get(task.short, TaskState.READY)),
                pid=1000 + number,
                last_exit=self.last_exit,
            )
            for number, task in enumerate(topology.on(host))
        )
        whole = aggregate_status(topology, {host: HostState.DOWN})
        ran = [run for run in self.runs if host == topology.head().host]
        runs = tuple(RunStatus(run.run, run.program, run.state, run.seconds or 0.0) for run in ran)
        own = HostStatus(host, HostState.UP, 999, TENSORFLOW)
        return replace(whole, hosts=(own,), tasks=tasks, runs=runs, started=self.started)

    def observed(self, cluster: str, host: str) -> ObservedState | None:
        """Return what the agent on a host observes; None if the cluster is not up there."""
        if cluster not in self.up or not journal_path(cluster, host).exists():
            return None
        active = {run.run: () for run in self.runs if run.state in (RunState.QUEUED, RunState.RUNNING)}
        return observed_on(host, observed_state(self.up[cluster], states=self.states, runs=active))

    def _accept(self, listener: socket.socket, cluster: str, host: str) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it was stopped
                return
            if self.hang_ups:
                self.hang_ups -= 1
                connection.close()
            else:
                threading.Thread(target=self._serve, args=[connection, cluster, host], name=THREAD, daemon=True).start()

    def _serve(self, connection: socket.socket, cluster: str, host: str) -> None:
        """Answer the only request of a connection."""
        decoder = MessageDecoder(is_agent=True)
        with connection, suppress(ConnectionError):
            connection.sendall(self.greeting)
            while (message := decoder.take_message()) is None:
                if not (data := connection.recv(1 << 16)):
                    return
                decoder.feed(data)
            request = decode_request(message)
            self.requests.append((host, request))
            for item in self._choose_answer(request, cluster, host):
                if isinstance(item, Silence):
                    connection.settimeout(item.seconds and min(item.seconds, 600.0))
                    with suppress(TimeoutError):
                        while connection.recv(1 << 16):
                            continue
                        return
                    continue
                connection.sendall(_encode(item, ends=isinstance(request, DownRequest)))

    def _choose_answer(self, request: Request[Any, Any], cluster: str, host: str) -> Answer:
        answers = self._answers.get(type(request))
        if not answers:
            return self._usual_answer(request, cluster, host)
        chosen = answers.pop(0) if len(answers) > 1 else answers[0]
        return chosen(request, host) if callable(chosen) else chosen

    def _usual_answer(self, request: Request[Any, Any], cluster: str, host: str) -> Iterator[object]:
        """Yield what an agent without troubles answers."""
        match request:
            case TopologyRequest():
                yield Reply(self.up[cluster])
            case StatusRequest():
                yield Reply(StatusReply(self.status(cluster, host), self.up[cluster].generation))
            case WatchRequest():
                yield from (self.status(cluster, host), Silence(request.timeout), Reply(Done()))
            case UsageRequest():
                yield Reply(HostUsage(None, {}))
            case ObserveRequest():
                yield Reply(Observation(self.observed(cluster, host)))
            case PrepareRequest():
                yield from (Preparation(TENSORFLOW, _allocation(request.topology, host), (), None), WAIT)
            case ReachRequest():
                yield Reply(ReachReply({}))
            case ApplyRequest():
                self.up[cluster] = request.topology
                journal_path(cluster, host).touch()
                yield Reply(ApplyReply(None))
            case DownRequest():
                yield self.status(cluster, host)
                self.go_down(cluster, host)
                yield Reply(DownReply())
            case RestartRequest():
                yield Reply(Done())
            case FailingRunsRequest():
                yield Reply(FailingRunsReply(()))
            case RunsRequest():
                yield Reply(RunsReply(tuple(self.runs)))
            case CancelRequest():
                yield Reply(CancelReply(request.run))
            case LogsRequest() | EventsRequest():
                yield from self._lines(request)
                yield Reply(Done())
            case _:
                raise AssertionError(f"say what {request} is answered with")

    def _lines(self, request: LogsRequest | EventsRequest) -> Iterator[object]:
        """Yield the lines that a request for logs or events asks for; the agent's own tests have the rest."""
        if isinstance(request, EventsRequest):
            yield from (EventEvent("", number, event) for number, event in enumerate(self.events, 1))
            return
        for number, line in enumerate(self.logs, 1):
            if not request.tasks or {line.task, line.task.partition(":")[0]} & {*request.tasks}:
                yield LogEvent(line.task, number, line)

    def go_down(self, cluster: str, host: str) -> None:
        """Have a cluster be down on a host."""
        journal_path(cluster, host).unlink(missing_ok=True)
        socket_path(cluster, host).unlink(missing_ok=True)
        with suppress(OSError):  # it has logs or runs
            state_folder(cluster, host).rmdir()


class OtherHost(LocalTransport):
    """The way to a host elsewhere, whose agent is the fake one too."""

    is_remote = True

    def __init__(self, agent: FakeAgent, cluster: str, host: Host) -> None:
        super().__init__(cluster, host.name)
        self._agent = agent

    def open(self, *, start: bool, upgrade: bool = False, dry: bool = False) -> LocalAgentConnection:
        self._reach()
        return super().open(start=start, upgrade=upgrade, dry=dry)

    def is_up(self) -> bool:
        self._reach()
        return super().is_up()

    def has_state(self) -> bool:
        self._reach()
        return super().has_state()

    def examine(self, *, dry: bool = False) -> HostReport:  # type: ignore[override] # as that of another host
        problem = self._obstacle()
        if problem is not None:
            return HostReport(self.host, problems=(problem,))
        return HostReport(self.host, python="python3", python_version="3.11.2", has_packages=True)

    def _reach(self) -> None:
        if (problem := self._obstacle()) is not None:
            raise problem

    def _obstacle(self) -> HostUnreachableError | None:
        self._agent.contacted.add(self.host)
        is_away = self.host in self._agent.away
        return HostUnreachableError(self.host, "no route to host", f"Type `ssh {self.host}`.") if is_away else None


def _encode(item: object, *, ends: bool) -> bytes:
    """Encode an item of an answer as an agent sends it."""
    if isinstance(item, bytes):
        return item
    if isinstance(item, ClusterError):
        return encode({"error": item.to_json(), "ends": False})
    if isinstance(item, Reply):
        return encode({"reply": to_json(item.value), "ends": ends})
    return encode({"event": to_json(item)})


def _allocation(topology: ClusterTopology, host: str) -> Allocation:
    """Return ports and GPUs for the tasks of a host."""
    complete = with_ports(topology)
    tasks = [task for task in (*complete.tasks, *complete.reserved) if task.host == host]
    gpus: Mapping[str, tuple[str, ...]] = {task.name: task.gpu_ids for task in tasks if task.gpu_ids}
    return Allocation({task.name: task.port for task in tasks if task.port is not None}, dict(gpus))
