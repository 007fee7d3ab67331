"""Which of a cluster's devices a run uses, from TensorFlow device strings, `--gpus` and `--devices`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from tfcluster.core.text import pluralize
from tfcluster.core.topology import PS_JOB
from tfcluster.errors import ClusterError, ExitCode

_PART = re.compile(r"/(?:(job|replica|task):([^/]+)|(?:device:)?([A-Za-z_]+|\*):(\d+|\*))")
# As TensorFlow describes one: "device: 0, name: NVIDIA H100, pci bus id: 0000:18:00.0, compute capability: 9.0".
_GPU = re.compile(r"\bname: (.+?), pci bus id: .*?\bcompute capability: ([0-9.]+)")
_COMPUTING_TYPES = ("GPU", "CPU")


@dataclass(frozen=True)
class Gpu:
    """What kind of GPU a device is, as `NVIDIA H100 80GB HBM3` of compute capability `9.0`."""

    name: str
    compute_capability: str


@dataclass(frozen=True)
class Device:
    """One device of one task.

    Attributes:
        name: Its full name, as `/job:worker/replica:0/task:0/device:CPU:0`.
        type: Its type, as `CPU`.
        memory_bytes: Memory that TensorFlow may use on it; for CPUs it says 256 MiB, whatever they have.
        description: What TensorFlow knows of the hardware; empty for CPUs.
    """

    name: str
    type: str
    memory_bytes: int = 0
    description: str = ""

    @property
    def short(self) -> str:
        """The name without the replica, as results key it."""
        return self.name.replace("/replica:0", "")

    @property
    def task(self) -> str:
        """The name of its task, as `/job:worker/task:0`."""
        return self.short.partition("/device:")[0]

    @property
    def gpu(self) -> Gpu | None:
        """The GPU behind it; None where it is none."""
        named = _GPU.search(self.description)
        return Gpu(named[1], named[2]) if named else None

    def to_json(self) -> dict[str, Any]:
        """What `devices -o json` says of it."""
        return {
            "task": self.task,
            "name": self.name,
            "type": self.type,
            "memory_bytes": self.memory_bytes,
            "description": self.description,
            "gpu": asdict(self.gpu) if self.gpu else None,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Device:
        """The device that `to_json` described."""
        return cls(value["name"], value["type"], value["memory_bytes"], value["description"])

    @property
    def job(self) -> str:
        """The job of its task."""
        return self.name.split("/")[1].removeprefix("job:")


@dataclass(frozen=True)
class Selection:
    """The devices that a run uses, and what the user should know about the choice."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...]


def matches(pattern: str, device: Device) -> bool:
    """Whether a TensorFlow device string names the device.

    As in TensorFlow a part left out matches anything (`/job:worker` is every device of the workers) and
    `*` stands for any value of a part; the device's type may be in lower case.

    Raises:
        ClusterError: The pattern is not a device string.
    """
    wanted, found = _parts(pattern), _parts(device.name)
    return all(fnmatchcase(found.get(key, ""), value) for key, value in wanted.items())


def select(
    devices: Sequence[Device], *, patterns: Sequence[str] = (), gpus: int | None = None, strict: bool = False
) -> Selection:
    """Choose the devices of a run.

    Without patterns a run computes on the GPUs of every task but the ps, or where there are none on the CPU
    devices of these tasks. A cluster that has only ps tasks computes on them.

    Args:
        devices: Every device of the cluster.
        patterns: TensorFlow device strings, wildcards allowed; a device is used when any matches.
        gpus: How many GPU devices to use; None leaves it to what there is.
        strict: Fewer GPUs than asked for is an error.

    Raises:
        ClusterError: A pattern matches nothing or is malformed (usage), or too few GPUs and strict.
    """
    computing = [device for device in devices if device.type in _COMPUTING_TYPES]
    if patterns:
        candidates = _matching(patterns, computing)
    else:
        candidates = [device for device in computing if device.job != PS_JOB] or computing
    found_gpus = [device for device in candidates if device.type == "GPU"]
    cpus = [device for device in candidates if device.type == "CPU"]
    if gpus is None:
        return Selection(tuple(candidates if patterns else found_gpus or cpus), ())
    if len(found_gpus) >= gpus:
        return Selection(tuple(found_gpus[:gpus]), ())
    where = "--devices names" if patterns else "the cluster has"
    shortage = f"{pluralize(gpus, 'GPU device')} asked for, {where} {len(found_gpus)}"
    if strict or not cpus:
        raise ClusterError(
            shortage,
            hint="Give jobs GPUs with `gpus: N` in the spec, ask for fewer with --gpus, or drop --strict.",
        )
    return Selection(tuple(cpus), (f"{shortage}: running on {pluralize(len(cpus), 'CPU device')}",))


def _matching(patterns: Sequence[str], devices: Sequence[Device]) -> list[Device]:
    chosen: list[Device] = []
    for pattern in patterns:
        found = [device for device in devices if matches(pattern, device)]
        if not found:
            raise ClusterError(
                f"--devices {pattern}: no device of the cluster has that name",
                hint="The cluster has " + ", ".join(device.short for device in devices) + ".",
                exit_code=ExitCode.USAGE,
            )
        chosen += [device for device in found if device not in chosen]
    return chosen


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
        raise ClusterError(
            f"{name!r} is not a TensorFlow device string",
            hint="Write it as /job:worker/task:1/device:CPU:0; parts may be left out, * stands for any value.",
            exit_code=ExitCode.USAGE,
        )
    return parts
