"""The cast: one cluster with everything that a command, `top` or the page can show, at a fixed time.

Its agents are made up and answer with the product's own types; the commands, views and the page's server are real.
Hosts are up, unreachable and down, tasks and runs are in each state, and there are GPUs, a job of a provider, long
names, wide characters and control characters.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.clusters import topology_of, with_ports
from tfcluster.cli.main import cli
from tfcluster.cli.output import echo_error
from tfcluster.client import resolve
from tfcluster.client.cluster import Cluster
from tfcluster.client.listing import ClusterSummary
from tfcluster.client.live import live_cluster
from tfcluster.client.live import view as live_view
from tfcluster.core.devices import Device
from tfcluster.core.log_levels import LogLevel
from tfcluster.core.states import ACTIVE_RUN_STATES, ClusterState, HostState, RunState, TaskState
from tfcluster.core.status import (
    NOT_STARTED,
    ClusterStatus,
    GpuLoad,
    HostLoad,
    HostStatus,
    JobStatus,
    LastExit,
    MemberStatus,
    RunStatus,
    unknown_task_status,
)
from tfcluster.core.usage import HostUsage, ProcessUsage
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import cluster as cluster_api
from tfcluster.protocol.api import logs as logs_api
from tfcluster.protocol.api import runs as runs_api
from tfcluster.protocol.api.processes import TaskThreadsReply, TaskThreadsRequest
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.protocol.api.view import RunReport, ViewReply, ViewRequest
from tfcluster.transport.errors import HostUnreachableError, not_running
from tfcluster.ui.console import console, error_console

#: 2026-01-31 12:00:00 UTC.
NOW = 1769860800.0
HOUR = 3600.0
MIB, GIB = 1 << 20, 1 << 30
#: What a terminal would obey or draw from right to left, and what rich would take for its markup.
EVIL = "\x1b[2J [bold]\u202e"

_SPEC = """
name: cast
hosts:
  alpha: {address: alpha.example}
  beta: {address: beta.example}
  gamma: {address: gamma.example}
  delta: {address: delta.example}
jobs:
  ps: {tasks: 1, hosts: [alpha]}
  worker: {tasks: 9, hosts: [alpha, alpha, alpha, beta, beta, beta, gamma, alpha, alpha]}
  preprocessing_of_large_images: {tasks: 1, hosts: [beta]}
  evaluator: {tasks: 1, hosts: [delta]}
"""
TOPOLOGY = replace(with_ports(topology_of(_SPEC, "specs/[cast].yaml")), generation=3)


def _server(task: str, cpu: float, memory: int, *devices: str, **more: Any) -> dict[str, Any]:
    """Return what is known of a task whose server runs, with devices such as `CPU:0`."""
    job, _, index = task.partition(":")
    names = tuple(f"/job:{job}/replica:0/task:{index}/device:{each}" for each in devices)
    used = {"pid": 4000 + int(index), "uptime_s": 15000.0, "cpu_percent": cpu, "rss_bytes": memory, "devices": names}
    return used | more


_KILLED = LastExit("SIGKILL", NOW - HOUR, "out of memory (OOM): the limit is 8 GiB")
_REQUESTED = LastExit("SIGTERM", NOW - HOUR, expected=True)
_FAILED = LastExit("exit code 1", NOW - 60, f"no port [2223] {EVIL}", ("its last line", EVIL))
_WAITS = LastExit(NOT_STARTED, NOW - 5, "waiting: the disk of /state/cast is full (ENOSPC)")
_PREPROCESSING = "preprocessing_of_large_images:0"
TASKS: dict[str, tuple[TaskState, dict[str, Any]]] = {
    "ps:0": (TaskState.READY, _server("ps:0", 99.6, 97 * MIB, "CPU:0")),
    "worker:0": (
        TaskState.READY,
        _server("worker:0", 350.0, 3 * GIB, "CPU:0", "GPU:0", "GPU:1", restarts=1, last_exit=_KILLED),
    ),
    "worker:1": (TaskState.STARTING, _server("worker:1", 0.0, MIB)),
    "worker:2": (TaskState.FAILED, {"restarts": 5, "last_exit": _FAILED}),
    "worker:3": (TaskState.BACKING_OFF, {"last_exit": _WAITS}),
    "worker:4": (
        TaskState.UNRESPONSIVE,
        _server("worker:4", 0.0, GIB, "CPU:0", probe_error="DEADLINE_EXCEEDED: no answer in 2 s"),
    ),
    "worker:5": (TaskState.STOPPING, _server("worker:5", 1.5, GIB, "CPU:0")),
    "worker:7": (TaskState.READY, _server("worker:7", 12.0, GIB, "CPU:0", restarts=1, last_exit=_KILLED)),
    "worker:8": (TaskState.READY, _server("worker:8", 0.0, GIB, "CPU:0", last_exit=_REQUESTED)),
    _PREPROCESSING: (
        TaskState.READY,
        _server(_PREPROCESSING, 100.0, 12 * GIB, *(f"CPU:{number}" for number in range(4))),
    ),
}
_GPUS = (
    GpuLoad("0", "NVIDIA H100", 90.0, 61 * GIB, 80 * GIB),
    GpuLoad("1", "a part of one", None, 10 * GIB, 20 * GIB),
)
USAGES = {
    "alpha": HostUsage(
        ProcessUsage(1.25, 40 * MIB),
        {
            "/job:ps/task:0": ProcessUsage(12.5, 97 * MIB),
            "/job:worker/task:0": ProcessUsage(999.0, 3 * GIB, 30 * GIB),
        },
        HostLoad(97.0, 16, 3 * GIB, 64 * GIB, _GPUS),
        5000.5,
        {"train-0007": 2 * GIB},
    ),
    "beta": HostUsage(None, {}, HostLoad(None, 8, GIB, 16 * GIB), 100.0),
}
DEVICES = {
    "alpha": (
        Device("/job:ps/replica:0/task:0/device:CPU:0", "CPU", 256 * MIB),
        Device(
            *("/job:worker/replica:0/task:0/device:GPU:0", "GPU", 79 * GIB),
            "device: 0, name: NVIDIA H100, pci bus id: 0000:18:00.0, compute capability: 9.0",
        ),
    ),
    "beta": (Device(f"/job:worker/replica:0/task:5/device:CPU:0 {EVIL}", "CPU", 256 * MIB),),
}


def _error(message: str, hint: str = "") -> dict[str, Any]:
    return ClusterError(message, hint=hint).to_json()


def _script(name: str, *args: str) -> dict[str, Any]:
    return {"path": f"/home/ann/{name}", "argument": name, "args": [*args], "module": None, "cwd": "/home/ann"}


def _run(
    run: str, program: str, state: RunState, ago: float, seconds: float, waited: float = 0.5, **fields: Any
) -> RunSummary:
    """Return a run that was submitted some seconds ago, waited in the queue, and took some seconds."""
    ended = None if state in ACTIVE_RUN_STATES else NOW - ago + waited + seconds
    values: dict[str, Any] = {"parameters": {}, **dict.fromkeys(("result", "error", "timeout", "origin")), **fields}
    return RunSummary(run=run, program=program, state=state, seconds=seconds, started=NOW - ago, ended=ended, **values)


_BLAME = """\
worker:2 on beta failed: ValueError: Dimensions must be equal, but are 32 and 16
its last lines:
  File "/home/ann/訓練.py", line 41, in step
  ValueError: Dimensions must be equal, but are 32 and 16"""
_TRIAL_ROWS: list[tuple[Any, ...]] = [
    (1, {"lr": 0.1, "by": "adam"}, "succeeded", {"loss": 0.25}, "alpha", 3.0),
    (0, {"lr": 0.2, "by": "sgd"}, "failed", {"loss": None}, "beta", 75.0),
    (2, {"lr": 0.3, "by": "sgd"}, "cancelled", {}, None, None),
]
_TRIAL_FIELDS = ("trial", "parameters", "state", "metrics", "host", "seconds")
_TRIALS = [dict(zip(_TRIAL_FIELDS, row, strict=True)) for row in _TRIAL_ROWS]
_ORIGIN = {
    **{"version": "1.0.0", "commit": "0123456789abcdef0123456789abcdef01234567", "is_clean": False, "digest": None},
    **{"devices": ["/job:worker/task:0/device:GPU:0"], "gpus": None, "strict": False, "upload": None},
    **{"upload_name": None, "start_timeout": None, "jobs": [], "max_restarts": 0, "sweep": None},
}
_PI = {
    **{"pi": 3.1414528, "stderr": 0.00051929, "interval": [3.14043486, 3.14247051], "samples": 10_000_000},
    **{"inside": 7_853_632, "samples_per_s": 507_000_000, "seed": 7},
}
_LINEAR = {"steps": 10_000, "batch": 128, "seed": None}
_WAITING = {
    **{"event": "waiting", "call": "Session.run", "file": "/home/ann/wait.py", "line": 9, "function": "main"},
    **{"seconds": 12.0, "message": "wait.py:9 waits in Session.run: worker:4 does not answer", "logs": None},
    "problems": [
        {"problem": "worker:4 does not answer", "hint": "", "task": "/job:worker/task:4", "host": "beta"},
    ],
}
#: The runs that alpha leads, the oldest first.
RUNS = (
    _run("old-0001", "unknown", RunState.UNREADABLE, 90 * HOUR, 0.0, error=_error("its record cannot be read")),
    _run("pi-0002", "pi", RunState.SUCCEEDED, 80 * HOUR, 0.41, 3.0, parameters={"samples": 10_000_000}, result=_PI),
    _run(
        *("linear-0003", "linear", RunState.SUCCEEDED, 5 * HOUR, 75.0),
        parameters=_LINEAR,
        result={"w": 2.006, "b": 0.1702, "mse": 0.0101, "batch": 101, "steps": 10_000, "seed": 3},
    ),
    _run(
        *("sweep-0004", "script", RunState.FAILED, 4 * HOUR, 80.0),
        parameters=_script("tune.py", "--lr", "{lr}"),
        script="tune.py",
        result={"trials": _TRIALS},
        origin=_ORIGIN | {"sweep": {"trials": 3, "best": "loss"}},
        error=_error("1 of 3 trials failed: trial:0 (lr=0.2 by=sgd): ValueError: no", "`tfcluster logs` shows it."),
    ),
    _run(
        *("launch-0005", "script", RunState.FAILED, 3 * HOUR, 33.0),
        parameters=_script("訓練.py", "--note", EVIL),
        script="訓練.py",
        result={"exit_code": 3, "restarts": 2, "metrics": {"worker:0": {"loss": 0.5}, "worker:1": {"loss": 0.25}}},
        origin=_ORIGIN,
        error=_error(_BLAME, "The whole output: `tfcluster logs launch-0005`."),
        timeout=70.0,
    ),
    _run("mean-0006", "mean", RunState.CANCELLED, 2 * HOUR, 12.0, parameters={"path": "/data/[x].npy"}),
    _run(
        *("train-0007", "script", RunState.RUNNING, HOUR, HOUR),
        parameters=_script("train_a_transformer_with_a_long_name.py", "--batch=64"),
        script="train_a_transformer_with_a_long_name.py",
        result={"metrics": {"loss": 0.4213, "norm": None}},
        missing_output=5 * MIB,
    ),
    _run("linear-0008", "linear", RunState.RUNNING, 600.0, 600.0, parameters=_LINEAR),
    _run("wait-0009", "script", RunState.RUNNING, 120.0, 120.0, parameters=_script("wait.py"), script="wait.py"),
    _run("launch-000a", "script", RunState.RUNNING, 60.0, 60.0, parameters=_script("multi.py"), script="multi.py"),
    _run("pi-000b", "pi", RunState.QUEUED, 30.0, 30.0, parameters={"samples": 100, "seed": None}),
)
_MEMBERS = (MemberStatus("worker:0", "alpha", 7001), MemberStatus("worker:3", "beta", 7002, -9))
REPORTS = (
    RunReport("train-0007", metrics={"loss": 0.4213, "norm": None}, step=4100),
    RunReport("linear-0008", {"done": 4100, "total": 10_000, "unit": "steps", "seconds": 32.0}),
    RunReport("wait-0009", wait=_WAITING),
)
_POINTS: list[tuple[int, str, str, float | None]] = [
    (1, "worker:0", "loss", 3.0),
    (1, "worker:0", "w", 2.5),
    (2, "worker:0", "loss", 1.5),
    (2, "worker:1", "loss", None),
    (2, "worker:1", "w", 2.125),
]
_LINEAR_METRICS = [
    {"event": "metric", "series": reporter, "step": step, "name": name, "value": value, "seconds": step / 10}
    for step, reporter, name, value in _POINTS
]
#: The events of runs, as `attach` gets them.
RUN_EVENTS: dict[str, list[dict[str, Any]]] = {
    "linear-0003": [
        {"event": "run", "run": "linear-0003", "program": "linear", "notes": ["2 GPUs were asked for: 1 is there"]},
        {"event": "member", "task": "worker:0", "host": "alpha", "state": "started", "attempt": 0},
        {"event": "progress", "done": 10_000, "total": 10_000, "unit": "steps", "seconds": 75.0},
        *_LINEAR_METRICS,
        {"event": "graph", "operations": [["y", "Add", ["x"]]]},
        {"event": "placement", "op": "y", "type": "Add", "device": "/job:worker/task:0/device:CPU:0"},
        {"event": "task_down", "task": "worker:1", "problem": "worker:1 died (SIGKILL) on beta"},
        {"event": "restart", "problem": "worker:0 failed: OSError\nmore", "seconds": 1.0, "left": 1},
        {"event": "result", "run": "linear-0003", "state": "succeeded", "notes": []},
    ],
    "sweep-0004": [
        {"event": "trial", **_TRIALS[0], "state": "running", "metrics": {}, "attempt": 0},
        {"event": "metric", "task": "trial:1", "name": "loss", "value": 0.25, "step": 7, "seconds": 2.0},
        {"event": "result", "run": "sweep-0004", "state": "failed", "result": {"trials": _TRIALS}},
    ],
}
_EVENTS: dict[str, list[tuple[float, tuple[str, str | None, str]]]] = {
    "alpha": [
        (HOUR, ("up", None, "requested by ann (uid 1000), pid 17")),
        (HOUR - 1, ("started", "worker:0", "pid 4000")),
        (HOUR - 2, ("ready", "worker:0", "")),
        (60.0, ("died", "worker:2", f"exit code 1 {EVIL}")),
        (59.0, ("failed", "worker:2", "5 restarts in 60 s")),
    ],
    "beta": [(HOUR / 2, ("stopping", "worker:5", "restarting, requested by 安 (uid 1000)"))],
}
_NODES = tuple(f"n{number}" for number in range(24))
CLUSTERS = (
    ClusterSummary("cast", "degraded", 5, 12, (*_EVENTS, "gamma", "delta"), NOW - 2 * HOUR, "specs/[cast].yaml"),
    ClusterSummary("away", "unreachable", 0, 0, ("n1",), None, "away.yaml", "n1 cannot be reached", "Switch it on."),
    ClusterSummary("many", "running", 48, 48, _NODES, NOW - 90 * HOUR, "many.yaml"),
)


def _run_status(run: RunSummary) -> RunStatus:
    members = _MEMBERS if run.run == "launch-000a" else ()
    return RunStatus(run.run, run.program, run.state, run.seconds or 0.0, None, run.script, members)


def status_of(host: str) -> ClusterStatus:
    """Return the status of one host, as its agent knows it."""
    known = [(task, *TASKS[task.short]) for task in TOPOLOGY.on(host)]
    return ClusterStatus(
        *("cast", ClusterState.DEGRADED, TOPOLOGY.spec),
        (HostStatus(host, HostState.UP, 100 + len(host), "2.21.0" if host == "alpha" else "2.20.0"),),
        tuple(replace(unknown_task_status(task, state), **fields) for task, state, fields in known),
        tuple(map(_run_status, RUNS)) if host == "alpha" else (),
        job=JobStatus(4711, "running", ("n1", "n2", "n10", "n11"), 5400.0) if host == "alpha" else None,
        started=NOW - 2 * HOUR,
    )


class Stream:
    """A response that has arrived whole."""

    timeout = 1.0

    def __init__(self, events: list[Any], reply: Any = None) -> None:
        self._events = iter(events)
        self._reply = reply

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return next(self._events)

    def wait_readable(self, timeout: float) -> bool:
        return True

    def result(self) -> Any:
        return self._reply

    def close(self) -> None: ...

    def close_and_reap(self) -> None: ...


class CastAgent:
    """Answers as the agent of a host does: alpha leads and beta is up, gamma is unreachable, and delta is down."""

    is_remote = True

    def __init__(self, host: str) -> None:
        self.host = host
        self.sent: list[Any] = []  # the requests that change something
        self.down: ClusterError | None = not_running("cast") if host == "delta" else None
        self._answers: dict[type, Callable[[Any], Any]] = {
            cluster_api.TopologyRequest: lambda request: TOPOLOGY,
            cluster_api.StatusRequest: lambda request: cluster_api.StatusReply(status_of(host), TOPOLOGY.generation),
            cluster_api.UsageRequest: lambda request: USAGES[host],
            cluster_api.DevicesRequest: lambda request: cluster_api.DevicesReply(DEVICES[host], ()),
            runs_api.RunsRequest: self._runs,
            runs_api.CancelRequest: self._cancel,
            TaskThreadsRequest: self._threads,
            ViewRequest: self._view,
        }

    @property
    def transport(self) -> CastAgent:
        return self

    def has_state(self) -> bool:
        return True

    def call(self, request: Any, **options: Any) -> Any:
        if self.down is not None and not isinstance(request, runs_api.RunsRequest):
            raise self.down
        if self.host == "gamma":
            raise HostUnreachableError("gamma", "connection timed out", "Is it switched on?")
        return self._answers[type(request)](request)

    def stream(self, request: Any, **options: Any) -> Stream:
        if isinstance(request, runs_api.AttachRequest):
            return Stream([runs_api.EventRecord(event) for event in RUN_EVENTS.get(request.run, [])])
        if isinstance(request, logs_api.LogsRequest):
            return Stream(self._log(request))
        if isinstance(request, logs_api.EventsRequest):
            return Stream([])
        return Stream([], self.call(request))

    def _runs(self, request: runs_api.RunsRequest) -> runs_api.RunsReply:
        runs = RUNS if self.host == "alpha" else ()
        return runs_api.RunsReply(runs if request.lines is None else runs[len(runs) - request.lines :])

    def _cancel(self, request: runs_api.CancelRequest) -> runs_api.CancelReply:
        self.sent.append(request)
        return runs_api.CancelReply(request.run)

    def _threads(self, request: TaskThreadsRequest) -> TaskThreadsReply:
        problem = "worker:4 is stopped by a signal (SIGSTOP)"
        return TaskThreadsReply(
            request.task, self.host, TaskState.UNRESPONSIVE, 4004, problem, "Type `kill -CONT 4004`.", (), ()
        )

    def _view(self, request: ViewRequest) -> ViewReply:
        events = [logs_api.ClusterEvent(NOW - ago, *rest) for ago, rest in _EVENTS[self.host]]
        is_known = "status" in request.known
        is_head = self.host == "alpha"
        return ViewReply(
            {"status": "1"},
            TOPOLOGY.generation,
            None if is_known else status_of(self.host),
            None if is_known else USAGES[self.host],
            RUNS if is_head else (),
            REPORTS if is_head else (),
            () if is_known else tuple(events),
            len(events),
        )

    def _log(self, request: logs_api.LogsRequest) -> list[Any]:
        """Return a hundred lines of each log; if only warnings are asked for, it says that it hides seven more."""
        (name,) = request.tasks
        is_silent = name == "worker:1"
        hidden = 0 if request.level in (None, LogLevel.INFO) else 7
        texts = [] if is_silent else [f"line {number} of {name} {EVIL}" for number in range(100)]
        lines = [logs_api.LogEvent(name, n, logs_api.LogLine(name, NOW, text, None)) for n, text in enumerate(texts)]
        return [logs_api.LogPositions({name: 0}, hidden), *lines]


class CastCluster(Cluster):
    """The cluster of the cast."""

    def __init__(self) -> None:
        super().__init__("cast", TOPOLOGY.hosts, "alpha")
        self.agents = {host.name: CastAgent(host.name) for host in TOPOLOGY.hosts}

    def connect(self, host: str) -> Any:
        return self.agents[host]

    def _replace(self, hosts: Any, head: str) -> Cluster:
        return self


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch) -> Iterator[CastCluster]:
    """The cast, which every command finds, in a world in which it is always NOW, in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    cluster = CastCluster()
    clock = SimpleNamespace(**{**vars(time), "time": lambda: NOW, "monotonic": lambda: NOW})
    monkeypatch.setattr(time, "time", clock.time)
    for module in (live_cluster, live_view):  # so that a view is not some moments older than what it shows
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(resolve, "resolve_cluster", lambda name: cluster)
    monkeypatch.setattr(resolve, "is_ambiguous", lambda name: False)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    yield cluster
    monkeypatch.undo()
    time.tzset()


def print_at(columns: int, show: Callable[[], Any]) -> str:
    """Return what a function prints to standard output and, after it, to standard error, as on a terminal's width."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    for each in (console, error_console):
        each.cache_clear()
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            console().width = error_console().width = columns
            show()
    finally:
        for each in (console, error_console):
            each.cache_clear()
    texts: list[Any] = [stream.buffer for stream in streams]
    return "".join(each.getvalue().decode() for each in texts)


def tfcluster(*words: str, columns: int = 100) -> str:
    """Return what a command of the cast prints, and its exit code as the last line."""
    codes = []

    def call() -> None:
        try:
            codes.append(int(cli.main(words, prog_name="tfcluster", standalone_mode=False) or 0))
        except ClusterError as error:
            echo_error(error)
            codes.append(int(error.exit_code))

    output = print_at(columns, call)
    return f"{output}exit code {codes[0]}\n"
