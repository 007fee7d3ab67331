"""The metrics of a cluster as OpenMetrics text, made from its status, for Prometheus and what reads its format.

Only gauges and counters are used: the parser of Prometheus's older text format, which node_exporter's textfile
collector has, reads them too, and takes the lines that it does not know for comments.

The job of a task is the label `tf_job`: `job` is a label that Prometheus itself gives each target, and it would rename
ours to `exported_job`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tfcluster.core.states import ACTIVE_RUN_STATES, RunState
from tfcluster.core.status import ClusterStatus, TaskStatus
from tfcluster.core.usage import HostUsage, with_usage


@dataclass
class _Family:
    """A metric family: its metadata and its samples."""

    name: str  # without `tfcluster_`, and of a counter without `_total`
    kind: str  # `gauge` or `counter`
    help: str
    unit: str = ""  # with which the name ends
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, labels: Mapping[str, str]) -> None:
        """Add a sample."""
        self.samples.append((labels, value))

    def add_states(self, state: Enum, labels: Mapping[str, str]) -> None:
        """Add a sample for each state that there is: 1 for the present one, 0 for all others."""
        for each in type(state):
            self.add(float(each is state), {**labels, "state": each.value})

    def lines(self) -> Iterator[str]:
        """Yield the lines of the family."""
        name = f"tfcluster_{self.name}"
        yield f"# TYPE {name} {self.kind}"
        if self.unit:
            yield f"# UNIT {name} {self.unit}"
        yield f"# HELP {name} {self.help}"
        suffix = "_total" if self.kind == "counter" else ""
        for labels, value in self.samples:
            pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            yield f"{name}{suffix}{{{pairs}}} {value:.15g}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def render_metrics(status: ClusterStatus, usages: Mapping[str, HostUsage]) -> str:
    """Return the metrics of a cluster as OpenMetrics text.

    Of a host that is away nothing is known but that: its tasks have a state, and no other value.
    """
    cluster = {"cluster": status.cluster}
    families = [
        *_cluster_families(status, cluster),
        *_host_families(status, usages, cluster),
        *_load_families(usages, cluster),
        *_task_families(status, usages, cluster),
        *_run_families(with_usage(status, usages), cluster),
    ]
    lines = [line for family in families for line in family.lines()]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _cluster_families(status: ClusterStatus, cluster: Mapping[str, str]) -> list[_Family]:
    state = _Family("cluster_state", "gauge", "Whether the cluster is in this state.")
    state.add_states(status.state, cluster)
    return [state]


def _host_families(status: ClusterStatus, usages: Mapping[str, HostUsage], cluster: Mapping[str, str]) -> list[_Family]:
    up = _Family("host_up", "gauge", "Whether the cluster's agent on this host answers.")
    info = _Family("host_info", "gauge", "Always 1; the TensorFlow of a host is a label.")
    cpu = _Family("agent_cpu_seconds", "counter", "Processor time that the host's agent has used.", "seconds")
    memory = _Family("agent_resident_memory_bytes", "gauge", "Resident memory of the host's agent.", "bytes")
    for host in status.hosts:
        labels = {**cluster, "host": host.host}
        up.add(float(host.state == "up"), labels)
        if host.tensorflow is not None:
            info.add(1.0, {**labels, "tensorflow": host.tensorflow})
        if host.host in usages:
            cpu.add(usages[host.host].agent.cpu_seconds, labels)
            memory.add(usages[host.host].agent.rss_bytes, labels)
    return [up, info, cpu, memory]


def _load_families(usages: Mapping[str, HostUsage], cluster: Mapping[str, str]) -> list[_Family]:
    cpus = _Family("host_cpus", "gauge", "Logical processors of the host.")
    cpu = _Family("host_cpu_seconds", "counter", "Processor time that all processes of the host have used.", "seconds")
    memory = _Family("host_memory_bytes", "gauge", "Memory of the host.", "bytes")
    used = _Family("host_memory_used_bytes", "gauge", "Memory of the host that is not available.", "bytes")
    gpu_info = _Family("gpu_info", "gauge", "Always 1; the product name of a GPU is a label.")
    busy = _Family("gpu_utilization_ratio", "gauge", "Part of the time in which the GPU computed.", "ratio")
    gpu_memory = _Family("gpu_memory_bytes", "gauge", "Memory of the GPU.", "bytes")
    gpu_used = _Family("gpu_memory_used_bytes", "gauge", "Memory of the GPU that any process uses.", "bytes")
    for host, usage in usages.items():
        if usage.load is None:
            continue
        labels = {**cluster, "host": host}
        cpus.add(usage.load.cpus, labels)
        cpu.add(usage.cpu_seconds, labels)
        memory.add(usage.load.memory_total_bytes, labels)
        used.add(usage.load.memory_used_bytes, labels)
        for gpu in usage.load.gpus:
            of_gpu = {**labels, "gpu": gpu.gpu}
            gpu_info.add(1.0, {**of_gpu, "product": gpu.name})
            if gpu.utilization_percent is not None:
                busy.add(gpu.utilization_percent / 100.0, of_gpu)
            gpu_memory.add(gpu.memory_total_bytes, of_gpu)
            gpu_used.add(gpu.memory_used_bytes, of_gpu)
    return [cpus, cpu, memory, used, gpu_info, busy, gpu_memory, gpu_used]


def _task_families(status: ClusterStatus, usages: Mapping[str, HostUsage], cluster: Mapping[str, str]) -> list[_Family]:
    state = _Family("task_state", "gauge", "Whether the task is in this state.")
    info = _Family("task_info", "gauge", "Always 1; the address of a task's server is a label.")
    restarts = _Family("task_restarts", "counter", "Restarts of the task since a command started it.")
    uptime = _Family("task_uptime_seconds", "gauge", "Time since the task's server was started.", "seconds")
    cpu = _Family("task_cpu_seconds", "counter", "Processor time that the task's server has used.", "seconds")
    memory = _Family("task_resident_memory_bytes", "gauge", "Resident memory of the task's server.", "bytes")
    received = _Family("task_network_receive_bytes", "counter", "Bytes that the task has received by TCP.", "bytes")
    sent = _Family("task_network_transmit_bytes", "counter", "Bytes that the task has sent by TCP.", "bytes")
    gpu_memory = _Family("task_gpu_memory_bytes", "gauge", "GPU memory of the task's processes, on all GPUs.", "bytes")
    devices = _Family("task_devices", "gauge", "TensorFlow devices of the task, by their type.")
    last_exit = _Family(
        "task_last_exit_timestamp_seconds", "gauge", "Unix time of the latest exit of the task's server.", "seconds"
    )
    up_hosts = {host.host for host in status.hosts if host.state == "up"}
    for task in status.tasks:
        labels = {**cluster, "host": task.host, "tf_job": task.job, "task": task.short}
        state.add_states(task.state, labels)
        info.add(1.0, {**labels, "address": task.address})
        if task.host not in up_hosts:
            continue
        restarts.add(task.restarts, labels)
        if task.uptime_s is not None:
            uptime.add(task.uptime_s, labels)
        usage = usages[task.host].tasks.get(task.task) if task.host in usages else None
        if usage is not None:
            cpu.add(usage.cpu_seconds, labels)
        if usage is not None and usage.traffic is not None:
            received.add(usage.traffic.received_bytes, labels)
            sent.add(usage.traffic.sent_bytes, labels)
        if usage is not None and usage.gpu_memory_bytes is not None:
            gpu_memory.add(usage.gpu_memory_bytes, labels)
        if task.rss_bytes is not None:
            memory.add(task.rss_bytes, labels)
        for kind, count in _device_types(task).items():
            devices.add(count, {**labels, "type": kind})
        if task.last_exit is not None:
            last_exit.add(task.last_exit.time, labels)
    return [state, info, restarts, uptime, cpu, memory, received, sent, gpu_memory, devices, last_exit]


def _device_types(task: TaskStatus) -> Counter[str]:
    """Count a task's devices, such as `/job:worker/replica:0/task:0/device:GPU:0`, by their type."""
    return Counter(device.rpartition("device:")[2].partition(":")[0] for device in task.devices)


def _run_families(status: ClusterStatus, cluster: Mapping[str, str]) -> list[_Family]:
    runs = _Family("runs", "gauge", "Runs that the agents know, by their state.")
    duration = _Family("run_duration_seconds", "gauge", "Time since a run that is active was submitted.", "seconds")
    gpu_memory = _Family("run_gpu_memory_bytes", "gauge", "GPU memory of the run's own processes.", "bytes")
    counts = Counter(run.state for run in status.runs)
    for state in RunState:
        runs.add(counts[state], {**cluster, "state": state.value})
    for run in status.runs:
        if run.state in ACTIVE_RUN_STATES:
            labels = {**cluster, "run": run.run, "program": run.program}
            duration.add(run.seconds, labels)
            if run.gpu_memory_bytes is not None:
                gpu_memory.add(run.gpu_memory_bytes, labels)
    return [runs, duration, gpu_memory]
