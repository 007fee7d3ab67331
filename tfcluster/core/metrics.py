"""The metrics of a cluster as OpenMetrics text, made from its status, for Prometheus and compatible readers.

Only gauges and counters are used: the parser of Prometheus's older text format, which node_exporter's textfile
collector has, reads them too, and skips the lines that it does not know as comments.

The job of a task is the label `tf_job`: `job` is a label that Prometheus itself gives each target, and it would rename
ours to `exported_job`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from enum import Enum

from tfcluster.core.states import ACTIVE_RUN_STATES, RunState
from tfcluster.core.status import ClusterStatus, HostStatus, RunStatus, TaskStatus
from tfcluster.core.usage import HostUsage, ProcessUsage, with_usage
from tfcluster.records import record_class


@record_class(frozen=True)
class _Family:
    name: str  # without `tfcluster_`, and of a counter without `_total`
    kind: str  # `gauge` or `counter`
    help: str


_FAMILIES = (
    _Family("cluster_state", "gauge", "Whether the cluster is in this state."),
    _Family("host_up", "gauge", "Whether the cluster's agent on this host answers."),
    _Family("host_info", "gauge", "Always 1; the TensorFlow of a host is a label."),
    _Family("agent_cpu_seconds", "counter", "CPU time that the host's agent has used."),
    _Family("agent_resident_memory_bytes", "gauge", "Resident memory of the host's agent."),
    _Family("host_cpus", "gauge", "Logical cores of the host."),
    _Family("host_cpu_seconds", "counter", "CPU time that all processes of the host have used."),
    _Family("host_memory_bytes", "gauge", "Memory of the host."),
    _Family("host_memory_used_bytes", "gauge", "Memory of the host that is not available."),
    _Family("gpu_info", "gauge", "Always 1; the product name of a GPU is a label."),
    _Family("gpu_utilization_ratio", "gauge", "Part of the time in which the GPU computed."),
    _Family("gpu_memory_bytes", "gauge", "Memory of the GPU."),
    _Family("gpu_memory_used_bytes", "gauge", "Memory of the GPU that any process uses."),
    _Family("task_state", "gauge", "Whether the task is in this state."),
    _Family("task_info", "gauge", "Always 1; the address of a task's server is a label."),
    _Family("task_restarts", "counter", "Restarts of the task since a command started it."),
    _Family("task_uptime_seconds", "gauge", "Time since the task's server was started."),
    _Family("task_cpu_seconds", "counter", "CPU time that the task's server has used."),
    _Family("task_resident_memory_bytes", "gauge", "Resident memory of the task's server."),
    _Family("task_gpu_memory_bytes", "gauge", "GPU memory of the task's processes, on all GPUs."),
    _Family("task_devices", "gauge", "TensorFlow devices of the task, by their type."),
    _Family("task_last_exit_timestamp_seconds", "gauge", "Unix time of the latest exit of the task's server."),
    _Family("runs", "gauge", "Runs that the agents know, by their state."),
    _Family("run_duration_seconds", "gauge", "Time since a run that is active was submitted."),
    _Family("run_gpu_memory_bytes", "gauge", "GPU memory of the run's own processes."),
)


# With which the name of a family ends.
_UNITS = ("seconds", "bytes", "ratio")


class _Samples:
    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._lines: dict[str, list[str]] = {family.name: [] for family in _FAMILIES}

    def add(self, name: str, value: float | None, **labels: str) -> None:
        if value is not None:
            pairs = ",".join(
                f'{label}="{_escape(text)}"' for label, text in {"cluster": self._cluster, **labels}.items()
            )
            self._lines[name].append(f"{{{pairs}}} {value:.15g}")

    def add_states(self, name: str, state: Enum, **labels: str) -> None:
        """Add a sample for each possible state: 1 for the present one, 0 for all others."""
        for each in type(state):
            self.add(name, float(each is state), **labels, state=each.value)

    def lines(self) -> Iterator[str]:
        for family in _FAMILIES:
            name = f"tfcluster_{family.name}"
            yield f"# TYPE {name} {family.kind}"
            if (unit := name.rpartition("_")[2]) in _UNITS:
                yield f"# UNIT {name} {unit}"
            yield f"# HELP {name} {family.help}"
            suffix = "_total" if family.kind == "counter" else ""
            yield from (f"{name}{suffix}{line}" for line in self._lines[family.name])


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def render_metrics(status: ClusterStatus, usages: Mapping[str, HostUsage]) -> str:
    """Return the metrics of a cluster as OpenMetrics text; of an unreachable host, only the states of its tasks."""
    samples = _Samples(status.cluster)
    samples.add_states("cluster_state", status.state)
    for host in status.hosts:
        _add_host(samples, host, usages.get(host.host))
    for name, usage in usages.items():
        _add_load(samples, name, usage)
    up_hosts = {host.host for host in status.hosts if host.state == "up"}
    for task in status.tasks:
        labels = {"host": task.host, "tf_job": task.job, "task": task.short}
        samples.add_states("task_state", task.state, **labels)
        samples.add("task_info", 1.0, **labels, address=task.address)
        if task.host in up_hosts:
            used = usages[task.host].tasks.get(task.task) if task.host in usages else None
            _add_task(samples, task, used, labels)
    _add_runs(samples, with_usage(status, usages).runs)
    return "\n".join([*samples.lines(), "# EOF"]) + "\n"


def _add_host(samples: _Samples, host: HostStatus, usage: HostUsage | None) -> None:
    samples.add("host_up", float(host.state == "up"), host=host.host)
    if host.tensorflow is not None:
        samples.add("host_info", 1.0, host=host.host, tensorflow=host.tensorflow)
    if usage is not None and usage.agent is not None:
        samples.add("agent_cpu_seconds", usage.agent.cpu_seconds, host=host.host)
        samples.add("agent_resident_memory_bytes", usage.agent.rss_bytes, host=host.host)


def _add_load(samples: _Samples, host: str, usage: HostUsage) -> None:
    load = usage.load
    if load is None:
        return
    samples.add("host_cpus", load.cpus, host=host)
    samples.add("host_cpu_seconds", usage.cpu_seconds, host=host)
    samples.add("host_memory_bytes", load.memory_total_bytes, host=host)
    samples.add("host_memory_used_bytes", load.memory_used_bytes, host=host)
    for gpu in load.gpus:
        percent = gpu.utilization_percent
        samples.add("gpu_info", 1.0, host=host, gpu=gpu.gpu, product=gpu.name)
        samples.add("gpu_utilization_ratio", None if percent is None else percent / 100.0, host=host, gpu=gpu.gpu)
        samples.add("gpu_memory_bytes", gpu.memory_total_bytes, host=host, gpu=gpu.gpu)
        samples.add("gpu_memory_used_bytes", gpu.memory_used_bytes, host=host, gpu=gpu.gpu)


def _add_task(samples: _Samples, task: TaskStatus, usage: ProcessUsage | None, labels: Mapping[str, str]) -> None:
    samples.add("task_restarts", task.restarts, **labels)
    samples.add("task_uptime_seconds", task.uptime_s, **labels)
    samples.add("task_resident_memory_bytes", task.rss_bytes, **labels)
    if usage is not None:
        samples.add("task_cpu_seconds", usage.cpu_seconds, **labels)
        samples.add("task_gpu_memory_bytes", usage.gpu_memory_bytes, **labels)
    # The type of a device such as `/job:worker/replica:0/task:0/device:GPU:0`.
    types = Counter(device.rpartition("device:")[2].partition(":")[0] for device in task.devices)
    for kind, count in types.items():
        samples.add("task_devices", count, **labels, type=kind)
    if task.last_exit is not None:
        samples.add("task_last_exit_timestamp_seconds", task.last_exit.time, **labels)


def _add_runs(samples: _Samples, runs: Collection[RunStatus]) -> None:
    counts = Counter(run.state for run in runs)
    for state in RunState:
        samples.add("runs", counts[state], state=state.value)
    for run in runs:
        if run.state in ACTIVE_RUN_STATES:
            samples.add("run_duration_seconds", run.seconds, run=run.run, program=run.program)
            samples.add("run_gpu_memory_bytes", run.gpu_memory_bytes, run=run.run, program=run.program)
