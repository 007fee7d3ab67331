"""Device selection: choose the devices of a run from TensorFlow device strings, `--gpus` and `--devices`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from tfcluster.core.text import join_problems, pluralize
from tfcluster.core.topology import PS_JOB
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.records import record_class

_PART = re.compile(r"/(?:(job|replica|task):([^/]+)|(?:device:)?([A-Za-z_]+|\*):(\d+|\*))")
# TensorFlow's description: "device: 0, name: NVIDIA H100, pci bus id: 0000:18:00.0, compute capability: 9.0".
_GPU = re.compile(r"\bname: (.+?), pci bus id: .*?\bcompute capability: ([0-9.]+)")
_COMPUTING_TYPES = ("GPU", "CPU")
_NO_PROBLEMS: Mapping[str, str] = MappingProxyType({})
_SHORTAGE_HINT = "Give jobs GPUs with `gpus: N` in the spec, request fewer with --gpus, or drop --strict."


@record_class(frozen=True)
class Gpu:
    """The GPU model of a device, for example `NVIDIA H100 80GB HBM3` with compute capability `9.0`."""

    name: str
    compute_capability: str


@record_class(frozen=True)
class Device:
    """One device of one task."""

    name: str  # the full name, such as `/job:worker/replica:0/task:0/device:CPU:0`
    type: str
    memory_bytes: int = 0  # memory that TensorFlow may use on it; for CPUs always 256 MiB
    description: str = ""  # TensorFlow's description of the hardware; empty for CPUs

    @property
    def short(self) -> str:
        """Return the name without the replica, which is the key of the device in results."""
        return without_replica(self.name)

    @property
    def task(self) -> str:
        """Return the name of the device's task, such as `/job:worker/task:0`."""
        return task_of(self.name)

    @property
    def gpu(self) -> Gpu | None:
        """Return the GPU model of the device, if it is a GPU."""
        named = _GPU.search(self.description)
        return Gpu(named[1], named[2]) if named else None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `devices -o json` prints for the device."""
        return {
            "task": self.task,
            "name": self.name,
            "type": self.type,
            "memory_bytes": self.memory_bytes,
            "description": self.description,
            "gpu": asdict(self.gpu) if self.gpu else None,
        }

    @property
    def job(self) -> str:
        """Return the job of the device's task."""
        return self.name.split("/")[1].removeprefix("job:")


def visible_gpus(allowed: str) -> list[str]:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES names; `-1` or an empty entry hides all that follow."""
    names = [name.strip() for name in allowed.split(",")]
    end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:end]


def find_gpu_problem(names: Sequence[str], gpus: Sequence[tuple[str, str]]) -> str | None:
    """Return why CUDA would not use all GPUs of a list, given the index and UUID of each GPU; None if it would.

    CUDA ignores an entry that names no GPU, and all that follow. If a GPU is repeated, it uses none.
    """
    if names and not gpus:
        return "names a GPU, but this host has no GPU (NVML, the library of NVIDIA's driver, finds none)"
    used = set[str]()
    for name in names:
        is_uuid, is_part = name.startswith("GPU-"), name.startswith("MIG-")
        # A UUID may be shortened. The names of parts of a GPU (MIG) depend on the driver, so they are not compared.
        found = [name] if is_part else [i for i, uuid in gpus if i == name or (is_uuid and uuid.startswith(name))]
        if len(found) != 1:
            known = ", ".join(uuid if is_uuid and uuid else index for index, uuid in gpus)
            return f"names {name}, but NVML, the library of NVIDIA's driver, finds {known}"
        if found[0] in used:
            return f"names {name} again, so CUDA uses no GPU at all"
        used.add(found[0])
    return None


@record_class(frozen=True)
class Selection:
    """The devices that a run uses, with notes for the user about the selection."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...]


def task_of(device: str) -> str:
    """Return the task of a device, such as `/job:worker/task:1`."""
    return without_replica(device).partition("/device:")[0]


def without_replica(device: str) -> str:
    """Return a device's name without the replica, as in results: `/job:worker/task:1/device:CPU:0`."""
    return device.replace("/replica:0", "")


def matches(pattern: str, device: Device) -> bool:
    """Return whether a TensorFlow device string matches the device; raise a ClusterError if it is not a device string.

    As in TensorFlow, an omitted part matches anything (`/job:worker` matches every device of the workers) and
    `*` matches any value of a part; the device type may be in lower case.
    """
    parts = _parts(device.name)
    return all(fnmatchcase(parts.get(key, ""), value) for key, value in _parts(pattern).items())


def may_be_on(pattern: str, task: str) -> bool:
    """Return whether a device string could match devices of a task."""
    parts, wanted = _parts(task), _parts(pattern)
    return all(fnmatchcase(value, wanted.get(key, "*")) for key, value in parts.items())


def missed(missing: Mapping[str, str], patterns: Sequence[str], tasks: Collection[str]) -> dict[str, str]:
    """Return those tasks that are not ready, with the reasons, on which a run would compute if they were.

    `patterns` are as in `select`, and `tasks` the names of all tasks of the cluster.
    """
    if not patterns:  # as in `select`
        patterns = [task for task in tasks if not task.startswith(f"/job:{PS_JOB}/")] or list(tasks)
    return {task: why for task, why in missing.items() if any(may_be_on(pattern, task) for pattern in patterns)}


def select(
    devices: Sequence[Device],
    *,
    patterns: Sequence[str] = (),
    gpus: int | None = None,
    strict: bool = False,
    missing: Mapping[str, str] = _NO_PROBLEMS,
) -> Selection:
    """Select the devices of a run.

    Without patterns a run computes on the GPUs of all tasks except the ps tasks, or on the CPU devices of these
    tasks if they have no GPUs. In a cluster that has only ps tasks, runs compute on the ps tasks.

    Tasks that are not ready are left out. The selection may be empty because of them.

    Args:
        patterns: TensorFlow device strings, wildcards allowed; a device is used if any pattern matches it.
        gpus: The number of GPU devices to use; None to use all GPUs, or the CPU devices if there are no GPUs.
        strict: Whether fewer GPUs than requested, or a task that is not ready, are an error.
        missing: Why each task that is not ready is not, by its name.

    Raises:
        ClusterError: A pattern is malformed or matches no device (usage error), or only tasks that are not ready; or
            there are too few GPUs and no CPU devices; or what `strict` forbids.
    """
    if strict and missing:
        raise not_ready(missing.values())
    computing = [device for device in devices if device.type in _COMPUTING_TYPES]
    if patterns:
        candidates = _matching(patterns, computing, missing)
    else:
        has_others = any(not task.startswith(f"/job:{PS_JOB}/") for task in missing)
        candidates = [device for device in computing if device.job != PS_JOB] or ([] if has_others else computing)
    available_gpus = [device for device in candidates if device.type == "GPU"]
    cpus = [device for device in candidates if device.type == "CPU"]
    if gpus is None:
        return Selection(tuple(candidates if patterns else available_gpus or cpus), ())
    if missing and not candidates:
        raise not_ready(missing.values())
    if len(available_gpus) >= gpus:
        return Selection(tuple(available_gpus[:gpus]), ())
    where = "--devices names" if patterns else "the cluster has"
    shortage = f"{pluralize(gpus, 'GPU device')} asked for, {where} {len(available_gpus)}"
    if strict or not cpus:
        raise ClusterError(shortage, hint=_SHORTAGE_HINT)
    return Selection(tuple(cpus), (f"{shortage}: running on {pluralize(len(cpus), 'CPU device')}",))


def not_ready(problems: Iterable[str], prefix: str = "") -> ClusterError:
    """Return the error of a run whose required tasks are not ready; each problem says why, as `worker:1 has failed`."""
    return ClusterError(
        prefix + join_problems(problems),
        hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` the last output of one.",
        exit_code=ExitCode.UNHEALTHY,
    )


def _matching(patterns: Sequence[str], devices: Sequence[Device], missing: Mapping[str, str]) -> list[Device]:
    selection: list[Device] = []
    for pattern in patterns:
        matching = [device for device in devices if matches(pattern, device)]
        if not matching:
            if problems := [problem for task, problem in missing.items() if may_be_on(pattern, task)]:
                raise not_ready(problems, f"--devices {pattern}: ")
            raise usage_error(
                f"--devices {pattern}: no device of the cluster matches",
                "The cluster has " + ", ".join(device.short for device in devices) + ".",
            )
        selection += [device for device in matching if device not in selection]
    return selection


def _parts(name: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    end = 0
    for match in _PART.finditer(name):
        if match.start() != end:
            break
        key, value, kind, number = match.groups()
        if key:
            parts[key] = value
        else:
            parts["type"], parts["number"] = kind.upper(), number
        end = match.end()
    if not name or end != len(name):
        raise usage_error(
            f"{name!r} is not a TensorFlow device string",
            "Write it as /job:worker/task:1/device:CPU:0; parts can be left out, * stands for any value.",
        )
    return parts
