"""Which devices a TensorFlow device string names, and which ones a run uses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.core.devices import Device, find_gpu_problem, matches, select, visible_gpus
from tfcluster.core.text import join_problems
from tfcluster.errors import ClusterError, ExitCode


def device(short: str) -> Device:
    """A device by a short form: `worker:0/GPU:1`."""
    task, _, kind = short.partition("/")
    job, _, index = task.partition(":")
    return Device(f"/job:{job}/replica:0/task:{index}/device:{kind}", kind.partition(":")[0])


def devices(text: str) -> list[Device]:
    return [device(short) for short in text.split()]


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


CPUS = "ps:0/CPU:0 worker:0/CPU:0 worker:0/CPU:1 worker:1/CPU:0"
MIXED = "ps:0/CPU:0 worker:0/CPU:0 worker:0/GPU:0 worker:0/GPU:1 worker:1/CPU:0 worker:1/GPU:0"


@pytest.mark.parametrize(
    ("cluster", "patterns", "gpus", "chosen"),
    [
        # Nothing asked for: the GPUs, else the CPUs, of all but the ps.
        (CPUS, [], None, "worker:0/CPU:0 worker:0/CPU:1 worker:1/CPU:0"),
        (MIXED, [], None, "worker:0/GPU:0 worker:0/GPU:1 worker:1/GPU:0"),
        ("ps:0/CPU:0 ps:1/CPU:0", [], None, "ps:0/CPU:0 ps:1/CPU:0"),
        ("ps:0/GPU:0 worker:0/CPU:0", [], None, "worker:0/CPU:0"),
        ("psych:0/CPU:0 ps:0/CPU:0", [], None, "psych:0/CPU:0"),
        ("worker:0/CPU:0 worker:0/XLA_CPU:0", [], None, "worker:0/CPU:0"),
        ("", [], None, ""),
        # This number of GPUs.
        (MIXED, [], 2, "worker:0/GPU:0 worker:0/GPU:1"),
        (MIXED, [], 3, "worker:0/GPU:0 worker:0/GPU:1 worker:1/GPU:0"),
        # Patterns take all that they name, also the ps, in their order and each once.
        (MIXED, ["/job:worker/task:1"], None, "worker:1/CPU:0 worker:1/GPU:0"),
        (MIXED, ["/task:1", "/gpu:*"], None, "worker:1/CPU:0 worker:1/GPU:0 worker:0/GPU:0 worker:0/GPU:1"),
        (MIXED, ["/job:ps", "/job:ps"], None, "ps:0/CPU:0"),
        # Both.
        (MIXED, ["/task:1"], 1, "worker:1/GPU:0"),
    ],
)
def test_the_devices_of_a_run(cluster: str, patterns: list[str], gpus: int | None, chosen: str) -> None:
    for strict in (False, True):
        selection = select(devices(cluster), patterns=patterns, gpus=gpus, strict=strict)
        assert selection.devices == tuple(devices(chosen))
        assert selection.notes == ()


@pytest.mark.parametrize(
    ("cluster", "gpus", "chosen", "shortage", "instead"),
    [
        (
            CPUS,
            4,
            "worker:0/CPU:0 worker:0/CPU:1 worker:1/CPU:0",
            "4 GPU devices asked for, the cluster has 0",
            "3 CPU",
        ),
        ("worker:0/CPU:0", 1, "worker:0/CPU:0", "1 GPU device asked for, the cluster has 0", "1 CPU device"),
        (MIXED, 4, "worker:0/CPU:0 worker:1/CPU:0", "4 GPU devices asked for, the cluster has 3", "2 CPU devices"),
        ("worker:0/GPU:0", 2, None, "2 GPU devices asked for, the cluster has 1", ""),
    ],
)
def test_fewer_gpus_than_asked_for_run_on_cpus_with_a_note_unless_strict(
    cluster: str, gpus: int, chosen: str | None, shortage: str, instead: str
) -> None:
    if chosen is not None:
        selection = select(devices(cluster), gpus=gpus)
        assert selection.devices == tuple(devices(chosen))
        (note,) = selection.notes
        assert note.startswith(f"{shortage}: running on {instead}")
    with pytest.raises(ClusterError) as caught:
        select(devices(cluster), gpus=gpus, strict=chosen is not None)
    assert (caught.value.message, caught.value.exit_code) == (shortage, ExitCode.FAILED)


W1_DEAD = {"/job:worker/task:1": "worker:1 died"}
ALL_DEAD = {"/job:worker/task:0": "worker:0 died", **W1_DEAD}


@pytest.mark.parametrize(
    ("ready", "patterns", "missing", "chosen"),
    [
        ("ps:0/CPU:0 worker:0/CPU:0", [], W1_DEAD, "worker:0/CPU:0"),
        ("ps:0/CPU:0 worker:0/CPU:0", ["/job:worker"], W1_DEAD, "worker:0/CPU:0"),
        ("ps:0/CPU:0 worker:0/CPU:0", ["/job:ps"], W1_DEAD, "ps:0/CPU:0"),
        ("ps:0/CPU:0", ["/task:*"], ALL_DEAD, "ps:0/CPU:0"),
        ("ps:0/CPU:0", [], ALL_DEAD, ""),  # a ps does not stand in for workers that are down
        ("ps:0/CPU:0", [], {"/job:ps/task:1": "ps:1 died"}, "ps:0/CPU:0"),
    ],
)
def test_tasks_that_are_not_ready_are_left_out(
    ready: str, patterns: list[str], missing: dict[str, str], chosen: str
) -> None:
    assert select(devices(ready), patterns=patterns, missing=missing).devices == tuple(devices(chosen))
    with pytest.raises(ClusterError) as caught:
        select(devices(ready), patterns=patterns, missing=missing, strict=True)
    assert (caught.value.message, caught.value.exit_code) == (join_problems(missing.values()), ExitCode.UNHEALTHY)


@pytest.mark.parametrize(
    ("pattern", "missing", "message"),
    [
        ("/job:worker/task:1/device:CPU:0", W1_DEAD, "--devices /job:worker/task:1/device:CPU:0: worker:1 died"),
        ("/job:worker/gpu:*", W1_DEAD, "--devices /job:worker/gpu:*: worker:1 died"),
        ("/task:*/gpu:0", ALL_DEAD, "--devices /task:*/gpu:0: worker:0, worker:1 died"),
    ],
)
def test_a_pattern_that_only_tasks_match_which_are_not_ready_names_them(
    pattern: str, missing: dict[str, str], message: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        select(devices("ps:0/CPU:0"), patterns=[pattern], missing=missing)
    assert (caught.value.message, caught.value.exit_code) == (message, ExitCode.UNHEALTHY)


def test_a_pattern_without_a_device_is_a_usage_error_with_the_devices() -> None:
    with pytest.raises(ClusterError) as caught:
        select(devices("ps:0/CPU:0 worker:0/CPU:1"), patterns=["/job:ps", "/job:chief"])
    assert caught.value.message == "--devices /job:chief: no device of the cluster matches"
    assert caught.value.hint == "The cluster has /job:ps/task:0/device:CPU:0, /job:worker/task:0/device:CPU:1."
    assert caught.value.exit_code is ExitCode.USAGE


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
