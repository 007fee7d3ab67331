"""Which devices a TensorFlow device string names, and which ones a run uses, whole in tests/golden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.goldens import golden
from tfcluster.core.devices import Device, find_gpu_problem, matches, select, visible_gpus
from tfcluster.errors import ClusterError, ExitCode


def device(short: str) -> Device:
    """A device by a short form: `worker:0/GPU:1`."""
    task, _, kind = short.partition("/")
    job, _, index = task.partition(":")
    return Device(f"/job:{job}/replica:0/task:{index}/device:{kind}", kind.partition(":")[0])


CPU = device("worker:1/CPU:0")


MATCHING = """
    /job:worker/replica:0/task:1/device:CPU:0 /job:worker/task:1/device:CPU:0 /job:worker/task:1/cpu:0 /job:worker
    /job:worker/task:1/device:cpu:0 /task:1 /replica:0 /device:CPU:0 /cpu:0 /device:CPU:* /device:*:0 /device:*:*
    /job:*/task:* /job:w* /task:1/job:worker
"""
OTHERS = """
    /job:work /job:Worker /job:ps /task:0 /task:11 /replica:1 /device:GPU:0 /device:CPU:1 /device:GPU:* /job:ps/task:1
"""
MALFORMED = """
    worker worker:1 job:worker / /worker /job: /job:worker/ /job:worker//task:1 /device:CPU /device:CPU:x /device::0
    x/job:worker /host:worker
"""


def test_parts_left_out_and_stars_match_anything() -> None:
    assert [pattern for pattern in f"{MATCHING} {OTHERS}".split() if matches(pattern, CPU)] == MATCHING.split()


@pytest.mark.parametrize("pattern", ["", "/job:worker x/task", *MALFORMED.split()])
def test_a_malformed_pattern_is_a_usage_error(pattern: str) -> None:
    with pytest.raises(ClusterError) as caught:
        matches(pattern, CPU)
    assert caught.value.message == f"{pattern!r} is not a TensorFlow device string"
    assert "/job:worker/task:1/device:CPU:0" in caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


#: Clusters with a word for each device, and `down=` for each task that is not ready; behind `--`, what is asked for.
CHOICES = """
CPUS --
MIXED --
ps:0/CPU:0 ps:1/CPU:0 --
ps:0/GPU:0 worker:0/CPU:0 --
psych:0/CPU:0 ps:0/CPU:0 --
worker:0/CPU:0 worker:0/XLA_CPU:0 --
--

MIXED -- gpus=2
MIXED -- gpus=3
MIXED -- gpus=4
CPUS -- gpus=4
worker:0/CPU:0 -- gpus=1
worker:0/GPU:0 -- gpus=2

MIXED -- /job:worker/task:1
MIXED -- /task:1 /gpu:*
MIXED -- /job:ps /job:ps
MIXED -- /task:1 gpus=1
ps:0/CPU:0 worker:0/CPU:1 -- /job:ps /job:chief

ps:0/CPU:0 worker:0/CPU:0 down=worker:1 --
ps:0/CPU:0 worker:0/CPU:0 down=worker:1 -- /job:worker
ps:0/CPU:0 worker:0/CPU:0 down=worker:1 -- /job:ps
ps:0/CPU:0 down=worker:0 down=worker:1 -- /task:*
ps:0/CPU:0 down=worker:0 down=worker:1 --
ps:0/CPU:0 down=ps:1 --
ps:0/CPU:0 down=worker:1 -- /job:worker/task:1/device:CPU:0
ps:0/CPU:0 down=worker:1 -- /job:worker/gpu:*
ps:0/CPU:0 down=worker:0 down=worker:1 -- /task:*/gpu:0
"""
ALIASES = {
    "CPUS": "ps:0/CPU:0 worker:0/CPU:0 worker:0/CPU:1 worker:1/CPU:0",
    "MIXED": "ps:0/CPU:0 worker:0/CPU:0 worker:0/GPU:0 worker:0/GPU:1 worker:1/CPU:0 worker:1/GPU:0",
}


def choices_of(line: str) -> Iterator[str]:
    """Yield which devices a run uses, or why none, if devices may be missing and if they may not."""
    cluster, _, asked = line.partition("--")
    words = ALIASES.get(cluster.strip(), cluster).split()
    there = {device(word): word for word in words if not word.startswith("down=")}
    down = [word.removeprefix("down=") for word in words if word.startswith("down=")]
    missing = {f"/job:{task.replace(':', '/task:')}": f"{task} died" for task in down}
    patterns = [word for word in asked.split() if not word.startswith("gpus=")]
    gpus = next((int(word.removeprefix("gpus=")) for word in asked.split() if word.startswith("gpus=")), None)
    for strict in (False, True):
        try:
            selection = select([*there], patterns=patterns, gpus=gpus, strict=strict, missing=missing)
        except ClusterError as error:
            found = [f"error {error.exit_code.value}: {error.message}{error.hint and f' ({error.hint})'}"]
        else:
            found = [" ".join(there[each] for each in selection.devices) or "none", *selection.notes]
        yield f"    {'strict: ' if strict else ''}{'; note: '.join(found)}"


def test_the_devices_of_a_run() -> None:
    """Those named, or else the GPUs, or else the CPUs, of all tasks but a ps.

    A ps stands in for no worker that is down.
    """
    lines: list[str] = []
    for line in CHOICES.strip().splitlines():
        found = [*choices_of(line)] if line else []
        is_same = found and found[1] == found[0].replace("    ", "    strict: ")
        lines += [line, *(found[:1] if is_same else found)]
    golden("device-choices.txt", "\n".join(lines))


_PIECES = ["/job:", "/task:", "/replica:", "/device:", "worker", "ps", "CPU", "gpu", ":", "0", "1", "*", "?", "[", "]!"]
_PATTERN = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(_PIECES), max_size=8).map("".join))
_CLUSTER = st.lists(
    st.builds(
        lambda job, index, kind, number: device(f"{job}:{index}/{kind}:{number}"),
        st.sampled_from(["ps", "worker", "chief"]),
        st.integers(0, 3),
        st.sampled_from(["CPU", "GPU", "XLA_CPU"]),
        st.integers(0, 1),
    ),
    unique=True,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(
    cluster=_CLUSTER,
    patterns=st.lists(_PATTERN, max_size=3),
    gpus=st.none() | st.integers(1, 4),
    strict=st.booleans(),
)
def test_a_choice_is_of_the_clusters_devices_or_a_cluster_error(
    cluster: list[Device], patterns: list[str], gpus: int | None, strict: bool
) -> None:
    try:
        selection = select(cluster, patterns=patterns, gpus=gpus, strict=strict)
    except ClusterError:
        return
    assert set(selection.devices) <= set(cluster)
    assert len(set(selection.devices)) == len(selection.devices)
    for chosen in selection.devices:
        assert not patterns or any(matches(pattern, chosen) for pattern in patterns)
    if gpus is not None and not selection.notes:
        assert [chosen.type for chosen in selection.devices] == ["GPU"] * gpus


H100 = "device: 0, name: NVIDIA H100 80GB HBM3, pci bus id: 0000:18:00.0, compute capability: 9.0"


def test_the_model_of_a_gpu_is_parsed_from_its_description() -> None:
    device = Device("/job:worker/replica:0/task:1/device:GPU:0", "GPU", 80 << 30, H100)
    assert device.to_json() == {
        "task": "/job:worker/task:1",
        "name": "/job:worker/replica:0/task:1/device:GPU:0",
        "type": "GPU",
        "memory_bytes": 80 << 30,
        "description": H100,
        "gpu": {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"},
    }
    assert replace(device, description="").to_json()["gpu"] is None


GPUS = [("0", "GPU-5f00"), ("1", "GPU-5f11"), ("2", "")]


@pytest.mark.parametrize(
    ("allowed", "problem"),
    [
        ("", None),
        ("-1", None),
        ("1,-1,7", None),
        ("2, GPU-5f1 ,0", None),
        ("MIG-GPU-5f00/1/0,MIG-8c", None),
        ("0,7,1", "names 7, but NVML, the library of NVIDIA's driver, finds 0, 1, 2"),
        ("GPU-abc", "names GPU-abc, but NVML, the library of NVIDIA's driver, finds GPU-5f00, GPU-5f11, 2"),
        ("GPU-5f", "names GPU-5f, but NVML, the library of NVIDIA's driver, finds GPU-5f00, GPU-5f11, 2"),
        ("all", "names all, but NVML, the library of NVIDIA's driver, finds 0, 1, 2"),
        ("NoDevFiles", "names NoDevFiles, but NVML, the library of NVIDIA's driver, finds 0, 1, 2"),
        ("0,0", "names 0 again, so CUDA uses no GPU at all"),
        ("GPU-5f1,1", "names 1 again, so CUDA uses no GPU at all"),
        ("MIG-8c,MIG-8c", "names MIG-8c again, so CUDA uses no GPU at all"),
    ],
)
def test_a_list_of_gpus_is_compared_with_those_that_are_there(allowed: str, problem: str | None) -> None:
    assert find_gpu_problem(visible_gpus(allowed), GPUS) == problem
    no_gpu = "names a GPU, but this host has no GPU (NVML, the library of NVIDIA's driver, finds none)"
    assert find_gpu_problem(visible_gpus(allowed), []) == (no_gpu if visible_gpus(allowed) else None)
