"""Which devices of tasks that are not ready a run uses when they answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tfcluster.agent.handlers.runs import _late_devices
from tfcluster.core.devices import Device, select
from tfcluster.core.programs import ProgramTraits
from tfcluster.core.runs import RunOptions


def device(task: int, kind: str) -> Device:
    return Device(f"/job:worker/replica:0/task:{task}/device:{kind}:0", kind)


CPUS = [device(task, "CPU") for task in range(3)]
GPUS = [device(task, "GPU") for task in range(3)]
WORKER_2 = "/job:worker/task:2"


@pytest.mark.parametrize(
    ("every", "patterns", "gpus", "late"),
    [
        (CPUS, (), None, [CPUS[2]]),
        (CPUS, ("/task:1",), None, []),
        (CPUS, ("/task:*",), None, [CPUS[2]]),
        (CPUS, (), 4, [CPUS[2]]),
        ([*CPUS, *GPUS], (), None, [GPUS[2]]),
        ([*CPUS, *GPUS], (), 2, []),
        ([*CPUS, *GPUS[:2]], (), None, []),
        ([*CPUS, GPUS[2]], (), None, []),
    ],
)
def test_late_devices_are_those_that_the_run_would_have_had(
    every: list[Device], patterns: Sequence[str], gpus: int | None, late: list[Device]
) -> None:
    missing = {WORKER_2: "worker:2 does not answer"}
    ready = [each for each in every if each.task != WORKER_2]
    selection = select(ready, patterns=patterns, gpus=gpus, missing=missing)
    options = RunOptions("pi", ProgramTraits(), {}, devices=tuple(patterns), gpus=gpus)
    assert _late_devices(every, missing, selection, options) == [each.name for each in late]
    assert _late_devices(every, {}, selection, options) == []
