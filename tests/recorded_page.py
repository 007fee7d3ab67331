"""The page of a large cluster that exists only as its JSON: 8 hosts, 60 tasks, 100 runs.

As a program, it serves the page until it is interrupted, to look at it: `python -m tests.recorded_page`.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from tfcluster.dashboard.api import RequestError
from tfcluster.dashboard.server import PageServer

HOSTS, WORKERS, RUNS = 8, 56, 100
_TASKS = [*(("ps", n) for n in range(4)), *(("worker", n) for n in range(WORKERS))]
_GIB = 1 << 30
_ERROR = """the script failed with exit code 1; its last output:
  File "/home/ann/models/train.py", line 41, in step
    loss = tf.reduce_mean(tf.square(model(x) - y))
ValueError: Dimensions must be equal, but are 32 and 16 for '{{node sub}} = Sub[T=DT_FLOAT](dense/BiasAdd, y)'"""
_ERROR_LINE = f"worker:3 on node3 failed: InvalidArgumentError: {_ERROR.splitlines()[-1]}"
_HINT = "Use the same number of units in the last layer."
_PROGRAMS = (
    ("pi", "pi = 3.14158 ± 0.00052 (standard error), 95% interval 3.14056 to 3.14260"),
    ("linear", "y = 2.006x + 0.1702, mean squared error 0.0101"),
    ("script", "loss=0.0312 accuracy=0.981"),
    ("mean", "mean = 0.49993, variance 0.0833"),
)
_ACTIVITIES = (
    "step=4100 loss=0.4213",
    "step=250 loss=0.0312",
    "waits: worker:50 died (SIGKILL) and restarts in 12 s",
)
_RESULTS = {"succeeded": {"value": 1.5}, "failed": {"exit_code": 1}}
_KINDS = {"died": "bad", "ready": "good"}
_LINES = {
    "info": "Local rendezvous is aborting with status: CANCELLED",
    "warning": "gRPC was retried (attempt 2 of 5)",
    "error": "OP_REQUIRES failed at conv_ops.cc:1146: RESOURCE_EXHAUSTED: OOM when allocating tensor " + "x" * 150,
}


def log_answer(lines: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """An answer to a question for the lines of logs."""
    return {
        "lines": lines,
        "hidden": 0,
        "omitted": 0,
        "after": "1",
        "problem": None,
        "pause": 1.0,
        "end": False,
        **more,
    }


class RecordedApi:
    """Answers the page as `Api` does, from made-up records; with GPUs on the first hosts, or without any."""

    def __init__(self, *, gpus: int = 2, hosts: int = HOSTS, now: float | None = None) -> None:
        self._is_fixed = now is not None
        self._now = time.time() if now is None else now
        self._hosts = [f"node{number}" for number in range(hosts)]
        self._gpus = gpus

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any], tag: str = "") -> Any:
        """Answer at once as `Api.answer` does; a view is measured every two seconds, and stays the same in between."""
        match path:
            case path if path.endswith("/graph"):
                return {"dot": "digraph {}"}
            case "/api/view":
                return self.view()
            case "/api/samples":
                return [self._sample(self._now - 2 * ago) for ago in range(60, 0, -1)]
            case "/api/logs":
                return self.logs(query)
            case _:
                return self._run(path.removeprefix("/api/runs/"))

    def view(self) -> dict[str, Any]:
        """Return what the page shows of the cluster."""
        time_shown = self._now + (0 if self._is_fixed else (time.time() - self._now) // 2 * 2)
        return {
            "time": time_shown,
            "measured": time_shown,
            "is_owner": True,
            "status": self._status(time_shown),
            "problems": self._problems(),
            "runs": self._records(),
            "events": self._events(),
        }

    def _run(self, run: str) -> dict[str, Any]:
        record = next((each for each in self._records() if each["run"] == run), None)
        if record is None:
            raise RequestError(HTTPStatus.NOT_FOUND, f"no run {run!r}")
        reporters = ["worker:0", "worker:1", "worker:2"] if record["program"] == "linear" else [""]
        members = [{"task": f"worker:{n}", "host": self._hosts[0], "state": "running", "attempt": 1} for n in range(3)]
        return {
            "run": run,
            "record": record | {"result": _RESULTS.get(record["state"]), "origin": None},
            "notes": ["2 GPUs were asked for, and the cluster has 1."] if record["program"] == "pi" else [],
            "members": members if record["program"] == "linear" else [],
            "trials": [],
            "progress": record["progress"],
            "series": [series for reporter in reporters for series in self._series(run, reporter)],
            "has_graph": record["program"] == "linear",
            "is_complete": record["state"] != "running",
        }

    def _series(self, run: str, reporter: str) -> Iterator[dict[str, Any]]:
        chance = random.Random(run + reporter)
        steps = range(0, 10_000, 40)
        loss = [3 * math.exp(-step / (900 + 300 * chance.random())) + 0.05 * chance.random() + 0.03 for step in steps]
        accuracy = [1 - 0.6 * math.exp(-step / 1500) - 0.04 * chance.random() for step in steps]
        rate = [900 + 120 * chance.random() for _ in steps]
        weights = [2 + math.exp(-step / 500) for step in steps]
        if reporter == "worker:2":  # was lost
            del weights[len(weights) // 2 :]
        known = {"loss": loss, "accuracy": accuracy, "steps_per_s": rate, **({"w": weights} if reporter else {})}
        for name, values in known.items():
            points = [[step, value, step / 100] for step, value in zip(steps, values, strict=False)]
            yield {"name": name, "reporter": reporter, "points": points}

    def _status(self, now: float) -> dict[str, Any]:
        hosts: list[dict[str, Any]] = []
        for number, name in enumerate(self._hosts):
            gpus = [
                {"gpu": str(gpu), "name": "H100", "utilization_percent": 83.0 - 7 * gpu}
                | {"memory_used_bytes": 61 * _GIB, "memory_total_bytes": 80 * _GIB}
                for gpu in range(self._gpus if number < 2 else 0)
            ]
            percent, used = (97.0, 61) if number == 6 else (12.5 * number + 4, 3 + 7 * number)
            load = {"cpu_percent": percent, "cpus": 16, "gpus": gpus}
            load |= {"memory_used_bytes": used * _GIB, "memory_total_bytes": 64 * _GIB}
            hosts.append(
                {"host": name, "state": "up", "agent_pid": 4000 + number, "tensorflow": "2.21.0", "load": load}
            )
        if len(hosts) > 1:
            hosts[-1] |= {"state": "unreachable", "agent_pid": None, "tensorflow": None, "load": None}
        used = self._sample(now)["tasks"]
        tasks = [self._task(job, index, used) for job, index in _TASKS]
        runs = [
            {"run": run["run"], "program": run["program"], "state": run["state"], "seconds": run["seconds"]}
            | {"gpu_memory_bytes": None, "script": run["script"], "members": []}
            for run in self._records()
        ]
        status = {"cluster": "imagenet", "state": "degraded", "started": self._now - 50_000}
        return status | {"spec": None, "network": None, "job": None, "hosts": hosts, "tasks": tasks, "runs": runs}

    def _problems(self) -> dict[str, str]:
        problem = "ssh: connect to host node7.example port 22: Connection timed out"
        return {self._hosts[-1]: problem} if len(self._hosts) > 1 else {}

    def _task(self, job: str, index: int, used: dict[str, list[Any]]) -> dict[str, Any]:
        name = f"/job:{job}/task:{index}"
        percent, memory = used[name]
        host = self._hosts[index % len(self._hosts)]
        state = "unresponsive" if host == "node7" else "backing-off" if (job, index) == ("worker", 50) else "ready"
        exit = {"reason": "SIGKILL", "time": self._now - 700, "detail": "out of memory (OOM): the limit is 8 GiB"}
        exit |= {"log": None, "expected": False}
        died = job == "worker" and index in (2, 50)
        return {
            **{"task": name, "job": job, "index": index, "host": host, "state": state, "restarts": 3 if died else 0},
            **{"uptime_s": 45_210.0, "cpu_percent": percent, "rss_bytes": memory, "devices": [], "pid": 5000 + index},
            **{"address": f"{host}.example:{2222 + index}", "probe_error": None},
            "gpu_memory_bytes": 30 * _GIB if self._gpus and job == "worker" and index % 8 < 2 else None,
            "last_exit": exit if died else None,
        }

    def _records(self) -> list[dict[str, Any]]:
        records = [self._record(number) for number in range(RUNS)]
        progress = {"done": 4100, "total": 10_000, "unit": "steps", "seconds": 32.0}
        for record, activity in zip(records[-3:], _ACTIVITIES, strict=True):
            record |= {"state": "running", "outcome": "", "error": None, "activity": activity, "ended": None}
        records[-3]["progress"] = progress
        return records

    def _record(self, number: int) -> dict[str, Any]:
        program, outcome = _PROGRAMS[number % len(_PROGRAMS)]
        name = "train" if program == "script" else program
        error = (_ERROR if program == "script" else _ERROR_LINE) if number % 9 == 5 else None
        if error is not None:
            first, *more = error.splitlines()
            outcome = " ".join((first, *more[-1:]))
        started, seconds = self._now - 600 * (RUNS - number), 3.0 * number + 0.4
        parameters: dict[str, Any] = {"samples": 10_000_000, "seed": number % 3}
        metrics: dict[str, float | None] = {}
        inputs = f"samples=10000000 seed={number % 3}"
        if program == "script":
            arguments = ["--rate", f"{0.1 / (1 + number % 5):.3g}", f"--batch={32 << number % 2}"]
            parameters = {"argument": "train_transformer.py", "args": arguments, "module": None, "cwd": "/home/ann"}
            inputs = " ".join(("train_transformer.py", *arguments))
            metrics = {"loss": 0.03 + (number * 37 % 50) / 1000, "accuracy": None if number % 8 == 6 else 0.981}
        return {
            **{"run": f"{name}-{number:04x}", "program": program, "inputs": inputs, "parameters": parameters},
            **{"script": parameters.get("argument"), "state": "failed" if error else "succeeded"},
            **{
                "started": started,
                "ended": started + seconds,
                "seconds": seconds,
                "waited": 12.0 if number == 97 else 0.1,
            },
            **{"error": error and {"message": error, "hint": _HINT}, "outcome": outcome, "timeout": None},
            **{
                "progress": None,
                "activity": "",
                "metrics": metrics,
                "result": None,
                "origin": None,
                "missing_output": 0,
            },
        }

    def _sample(self, at: float) -> dict[str, Any]:
        chance = random.Random(int(at) // 2)
        used = {
            f"/job:{job}/task:{n}": [
                60 + 35 * chance.random(),
                (812 << 20) if job == "ps" else int(800e6 * (1 + chance.random() / 9)),
            ]
            for job, n in _TASKS
        }
        return {"time": at, "tasks": used}

    def _events(self) -> list[dict[str, Any]]:
        found: list[tuple[float, str, str, str, str]] = []  # seconds ago, task, host, event, detail
        for number, (task, ago) in enumerate(
            [("worker:50", 700), ("worker:2", 1500), ("worker:50", 2400), ("ps:0", 3000)]
        ):
            found.append((ago, task, f"node{number}", "died", "SIGKILL; out of memory"))
            found.append((ago - 0.3, task, f"node{number}", "started", "pid 812"))
            found.append((ago - 0.6, task, f"node{number}", "ready", ""))
        restart = ("stopping", "stopped", "started", "ready", "died", "started", "ready")
        found += [(-n / 10, "ps:1", "node1", event, "") for n, event in enumerate(restart)]  # at the end of the axis
        found += [(3200 - n, f"worker:{n}", "node1", "ready", "") for n in range(20)]
        return [
            {"time": self._now - ago, "task": task, "host": host, "event": event, "detail": detail}
            | {"kind": _KINDS.get(event, "plain")}
            for ago, task, host, event, detail in sorted(found, key=lambda each: -each[0])
        ]

    def logs(self, query: dict[str, str]) -> dict[str, Any]:
        """Return all lines at once, and none later."""
        if query.get("after"):
            return log_answer([])
        lines: list[dict[str, Any]] = [
            {"time": self._now - 60 + number / 10, "task": f"worker:{number % 5}", "line": text, "level": level}
            for number, (level, text) in enumerate(list(_LINES.items()) * 60)
        ]
        if "-" in query.get("tasks", ""):  # a run of a group
            lines = [{**line, "task": query["tasks"], "member": line["task"]} for line in lines]
        levels = list(_LINES)
        shown = [line for line in lines if levels.index(line["level"]) >= levels.index(query.get("level", "info"))]
        return log_answer(shown, hidden=len(lines) - len(shown))


@contextlib.contextmanager
def serve_recorded(api: Any) -> Iterator[str]:
    """Serve a page while the context is open, and return its link."""
    with PageServer(0, api, "token") as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()


if __name__ == "__main__":
    with serve_recorded(RecordedApi()) as url:
        print(url, flush=True)
        threading.Event().wait()
