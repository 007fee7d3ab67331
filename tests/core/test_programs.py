"""Which tasks a run may use: those of its devices, or all."""

from __future__ import annotations

import pytest

from tfcluster.core.programs import BUNDLED, SCRIPT
from tfcluster.core.runs import RunOptions

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
DEVICES = [f"/job:worker/replica:0/task:{task}/device:CPU:{cpu}" for task in (0, 1) for cpu in (0, 1)]


@pytest.mark.parametrize("program", [*BUNDLED, SCRIPT])
def test_some_programs_use_the_tasks_of_their_devices_alone_and_others_may_use_all(program: str) -> None:
    used = [W0, W1] if program in ("pi", "mean") else [PS, W0, W1]
    assert RunOptions(program, {}).used_tasks(DEVICES, [PS, W0, W1]) == used


def test_the_members_of_a_group_use_no_servers() -> None:
    assert RunOptions(SCRIPT, {}, jobs=()).used_tasks(DEVICES, [PS, W0, W1]) == []
