"""The metrics of a cluster, whole in tests/golden/metrics.txt: Prometheus' parsers read them, and the board has all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.conftest import ROOT
from tests.core.test_status import FAILED, READY
from tfcluster.core.metrics import render_metrics
from tfcluster.core.states import ClusterState, HostState, RunState, TaskState
from tfcluster.core.status import ClusterStatus, GpuLoad, HostLoad, HostStatus, RunStatus
from tfcluster.core.usage import HostUsage, ProcessUsage, with_usage

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
EVIL = 'a "name"\\n\\ of\nlines'
STATUS = ClusterStatus(
    cluster="demo",
    state=ClusterState.DEGRADED,
    spec="cluster.yaml",
    hosts=(HostStatus("localhost", HostState.UP, 3, "2.21.0"), HostStatus("beta", HostState.UNREACHABLE, None, None)),
    tasks=(
        replace(READY, devices=(*READY.devices, "/job:worker/replica:0/task:0/device:GPU:0")),
        replace(FAILED, host="beta", state=TaskState.UNRESPONSIVE),
    ),
    runs=(
        RunStatus("pi-3f9a", "pi", RunState.SUCCEEDED, 0.5),
        RunStatus("pi-4f9a", EVIL, RunState.RUNNING, 2.5),
    ),
)
GPU = GpuLoad("0", "NVIDIA H100", 25.0, 1 << 30, 80 << 30)
LOAD = HostLoad(12.5, 8, 3 << 30, 16 << 30, (GPU, GpuLoad("1", "a part of one", None, 0, 10 << 30)))
USAGES = {
    "localhost": HostUsage(
        ProcessUsage(1.25, 4096),
        {READY.task: ProcessUsage(12.5, 2048, 3 << 30)},
        LOAD,
        100.5,
        {"pi-4f9a": 1 << 30},
    )
}


def samples_of(text: str, parse: Callable[[str], Iterable[Any]] = parse_openmetrics) -> Samples:
    """Return the values of a text by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value_of(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the value of the sample of a metric that has some labels; None if there is none."""
    values = [
        value
        for (each, pairs), value in samples.items()
        if each == f"tfcluster_{name}" and labels.items() <= set(pairs)
    ]
    assert len(values) < 2
    return values[0] if values else None


def test_a_status_gets_the_load_and_the_gpu_memory_of_the_hosts_that_told() -> None:
    status = with_usage(STATUS, USAGES)
    assert [host.load for host in status.hosts] == [LOAD, None]
    assert [task.gpu_memory_bytes for task in status.tasks] == [3 << 30, None]
    status = with_usage(STATUS, {**USAGES, "beta": replace(USAGES["localhost"], tasks={})})
    assert [run.gpu_memory_bytes for run in status.runs] == [None, 2 << 30], "of its processes on all hosts"


def test_of_a_host_that_is_away_only_that_is_known() -> None:
    samples = samples_of(render_metrics(STATUS, USAGES))
    assert value_of(samples, "host_up", host="beta") == 0
    assert value_of(samples, "task_state", host="beta", state="unresponsive") == 1
    # A counter that drops to 0 and comes back would be counted as restarts.
    names = {name for name, labels in samples if ("host", "beta") in labels}
    assert names == {"tfcluster_host_up", "tfcluster_task_state", "tfcluster_task_info"}


def test_units_types_and_labels_follow_the_conventions_and_the_older_format_has_the_same_values() -> None:
    text = render_metrics(STATUS, USAGES)
    assert text.endswith("\n# EOF\n")
    for family in parse_openmetrics(text):
        assert family.type in ("gauge", "counter")
        assert family.documentation.endswith(".")
        unit = family.name.rpartition("_")[2]
        assert family.unit == (unit if unit in ("seconds", "bytes", "ratio") else "")
    samples = samples_of(text)
    assert samples_of(text, parse_text) == samples
    labels = {label for _, pairs in samples for label, _ in pairs}
    assert "tf_job" in labels
    assert labels.isdisjoint({"job", "instance"})


def expressions_in(board: object) -> Iterator[str]:
    """Yield the queries in a Grafana board."""
    if isinstance(board, dict):
        yield from (each for key, each in board.items() if key in ("expr", "query", "definition") and each)
        board = list(board.values())
    if isinstance(board, list):
        for each in board:
            yield from (text for text in expressions_in(each) if isinstance(text, str))


@pytest.mark.parametrize("file", ["grafana.json", "monitoring.md"])
def test_each_metric_of_the_examples_exists(file: str) -> None:
    text = (ROOT / "docs" / file).read_text()
    if file.endswith(".json"):
        text = "\n".join(expressions_in(json.loads(text)))
    families = {name for name, _ in samples_of(render_metrics(STATUS, USAGES))}
    used = set(re.findall(r"\btfcluster_[a-z_]+", text))
    assert len(used) >= 5
    assert used <= families
