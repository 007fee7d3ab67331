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
from typing import Any

from tfcluster.dashboard.api import Stream
from tfcluster.dashboard.server import PageServer

HOSTS, WORKERS, RUNS = 8, 56, 100
_GIB = 1 << 30
_ERROR = """the script failed with exit code 1; its last output:
  File "/home/ann/models/train.py", line 41, in step
    loss = tf.reduce_mean(tf.square(model(x) - y))
ValueError: Dimensions must be equal, but are 32 and 16 for '{{node sub}} = Sub[T=DT_FLOAT](dense/BiasAdd, y)'"""
_ERROR_LINE = f"worker:3 on node3 failed: InvalidArgumentError: {_ERROR.splitlines()[-1]}"
_PROGRAMS = (
    ("pi", "pi = 3.14158 ± 0.00052 (standard error), 95% interval 3.14056 to 3.14260"),
    ("linear", "y = 2.006x + 0.1702, mean squared error 0.0101"),
    ("script", "loss=0.0312 accuracy=0.981"),
    ("mean", "mean = 0.49993, variance 0.0833"),
)


class RecordedApi:
    """Answers the page as `Api` does, from made-up records; with GPUs on the first hosts, or without any."""

    def __init__(self, *, gpus: int = 2, hosts: int = HOSTS, now: float | None = None) -> None:
        self._random = random.Random(1)
        self._fixed_now = now
        self._hosts = [f"node{number}" for number in range(hosts)]
        self._gpus = gpus

    @property
    def _now(self) -> float:
        return time.time() if self._fixed_now is None else self._fixed_now

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Any:
        if path == "/api/state":
            return self._follow_state()
        if path == "/api/logs":
            return self._follow_logs(query.get("level", "info"), query.get("tasks", ""))
        run = path.removeprefix("/api/runs/")
        record = next(each for each in self._records() if each["run"] == run)
        reporters = ["worker:0", "worker:1", "worker:2"] if record["program"] == "linear" else [""]
        return {
            "run": run,
            "record": {**record, "inputs": "samples=10000000"},
            "notes": ["2 GPUs were asked for, and the cluster has 1."] if record["program"] == "pi" else [],
            "members": [{"task": f"worker:{n}", "host": self._hosts[0], "state": "running"} for n in range(3)],
            "progress": {"done": 4100, "total": 10_000, "unit": "steps", "seconds": 32.0},
            "series": [series for reporter in reporters for series in self._series(run, reporter)],
            "has_graph": False,
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

    def _follow_state(self) -> Stream:
        yield [
            ("state", {"status": self._status(), "problems": self._problems(), "runs": self._records()}),
            ("samples", [self._sample() for _ in range(60)]),
            ("events", self._events()),
            ("runs", {"changed": [], "progress": self._progress()}),
        ]
        while True:
            time.sleep(2)
            yield [("samples", [self._sample()])]

    def _status(self) -> dict[str, Any]:
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
        tasks = [self._task("ps", index) for index in range(4)] + [self._task("worker", n) for n in range(WORKERS)]
        runs = [{"run": run["run"], "state": run["state"], "seconds": run["seconds"]} for run in self._records()]
        return {"cluster": "imagenet", "state": "degraded", "hosts": hosts, "tasks": tasks, "runs": runs}

    def _problems(self) -> dict[str, str]:
        problem = "ssh: connect to host node7.example port 22: Connection timed out"
        return {self._hosts[-1]: problem} if len(self._hosts) > 1 else {}

    def _task(self, job: str, index: int) -> dict[str, Any]:
        host = self._hosts[index % len(self._hosts)]
        state = "unresponsive" if host == "node7" else "backing-off" if (job, index) == ("worker", 50) else "ready"
        exit = {"reason": "SIGKILL", "time": self._now - 700, "detail": "out of memory (OOM): the limit is 8 GiB"}
        died = job == "worker" and index in (2, 50)
        return {
            "task": f"/job:{job}/task:{index}",
            **{"job": job, "index": index, "host": host, "state": state, "restarts": 3 if died else 0},
            **{"uptime_s": 45_210.0, "cpu_percent": 93.1 - index, "rss_bytes": 812 << 20, "devices": []},
            "gpu_memory_bytes": 30 * _GIB if self._gpus and job == "worker" and index % 8 < 2 else None,
            "last_exit": exit if died else None,
        }

    def _records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        for number in range(RUNS):
            program, outcome = _PROGRAMS[number % len(_PROGRAMS)]
            name = "train" if program == "script" else program
            failed = number % 9 == 5
            record: dict[str, Any] = {
                "run": f"{name}-{number:04x}",
                "program": program,
                "parameters": {"argument": "train_transformer.py"} if program == "script" else {"samples": 10_000_000},
            }
            record |= {"state": "failed" if failed else "succeeded", "seconds": 3.0 * number + 0.4}
            record |= {"started": self._now - 600 * (RUNS - number), "origin": None, "result": {"value": 1.5}}
            record |= {"outcome": outcome, "error": None}
            if failed:
                error = _ERROR if program == "script" else _ERROR_LINE
                first, *more = error.splitlines()
                outcome = " ".join((first, *more[-1:]))
                record |= {"outcome": outcome, "error": {"message": error, "hint": ""}, "result": None}
            if number >= RUNS - 3:
                record |= {"state": "running", "outcome": "", "error": None, "result": None}
            records.append(record)
        return records

    def _progress(self) -> dict[str, Any]:
        first, second, third = [record["run"] for record in self._records()[-3:]]
        progress = {"done": 4100, "total": 10_000, "unit": "steps", "seconds": 32.0}
        return {
            first: {"progress": progress, "text": "step=4100 loss=0.4213"},
            second: {"progress": None, "text": "step=250 loss=0.0312"},
            third: {"progress": None, "text": "waits: worker:50 died (SIGKILL) and restarts in 12 s"},
        }

    def _sample(self) -> dict[str, Any]:
        chance = self._random
        tasks = [*(("ps", n) for n in range(4)), *(("worker", n) for n in range(WORKERS))]
        used = {
            f"/job:{job}/task:{n}": [60 + 35 * chance.random(), int((700 + 100 * chance.random()) * 2**20)]
            for job, n in tasks
        }
        return {"time": time.time(), "tasks": used, "hosts": {}}

    def _events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for number, (task, ago) in enumerate(
            [("worker:50", 700), ("worker:2", 1500), ("worker:50", 2400), ("ps:0", 3000)]
        ):
            for kind, after, detail in (
                ("died", 0.0, "SIGKILL; out of memory"),
                ("started", 0.3, "pid 812"),
                ("ready", 0.6, ""),
            ):
                events.append(
                    {
                        "time": self._now - ago + after,
                        "task": task,
                        "event": kind,
                        "detail": detail,
                        "host": f"node{number}",
                    }
                )
        events += [  # within a second, at the end of the axis
            {"time": self._now + n / 10, "task": "ps:1", "event": kind, "detail": "", "host": "node1"}
            for n, kind in enumerate(("stopping", "stopped", "started", "ready", "died", "started", "ready"))
        ]
        events += [
            {"time": self._now - 3200 + n, "task": f"worker:{n}", "event": "ready", "detail": "", "host": "node1"}
            for n in range(20)
        ]
        return events

    def _follow_logs(self, level: str, name: str) -> Stream:
        levels = {
            "info": "Local rendezvous is aborting with status: CANCELLED",
            "warning": "gRPC was retried (attempt 2 of 5)",
        }
        levels["error"] = (
            "OP_REQUIRES failed at conv_ops.cc:1146: RESOURCE_EXHAUSTED: OOM when allocating tensor " + "x" * 150
        )
        lines = [
            {"time": self._now - 60 + number / 10, "task": f"worker:{number % 5}", "line": text, "level": level}
            for number, (level, text) in enumerate(list(levels.items()) * 60)
        ]
        if "-" in name:  # a run of a group
            lines = [{**line, "task": name, "member": line["task"]} for line in lines]
        shown = [line for line in lines if list(levels).index(str(line["level"])) >= list(levels).index(level)]
        yield [*([("hidden", len(lines) - len(shown))] if len(shown) < len(lines) else []), ("lines", shown)]
        while True:
            time.sleep(2)
            yield []


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
