"""Which lost tasks a run can do without."""

from __future__ import annotations

from tfcluster.model.programs import cannot_go_on, tasks_used

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
DEVICES = [f"/job:worker/replica:0/task:{task}/device:CPU:{cpu}" for task in (0, 1) for cpu in (0, 1)]


def test_a_program_uses_the_tasks_of_its_devices_and_a_script_may_use_all() -> None:
    assert tasks_used("pi", DEVICES, [PS, W0, W1]) == [W0, W1]
    assert tasks_used("script", DEVICES, [PS, W0, W1]) == [PS, W0, W1]
    assert tasks_used("graph", [], [PS]) == []


def test_a_program_that_needs_its_tasks_goes_on_only_with_all_of_them() -> None:
    assert cannot_go_on("graph", [W0, W1], {PS}) == []
    assert cannot_go_on("graph", [W0, W1], {PS, W1}) == [W1]
    assert cannot_go_on("graph", [], {PS, W1}) == []


def test_a_program_that_sees_to_lost_tasks_goes_on_with_one() -> None:
    for program in ("pi", "mean", "linear", "script"):
        assert cannot_go_on(program, [W0, W1], {PS, W1}) == []
        assert cannot_go_on(program, [W0, W1], {PS, W0, W1}) == [W0, W1]
        assert cannot_go_on(program, [W0], {W0}) == [W0]
        assert cannot_go_on(program, [], {W0}) == []
