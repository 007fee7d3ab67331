"""Which lost tasks a run can do without."""

from __future__ import annotations

import pytest

from tfcluster.core.programs import blocking_losses, compute_tasks, required_tasks

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
DEVICES = [f"/job:worker/replica:0/task:{task}/device:CPU:{cpu}" for task in (0, 1) for cpu in (0, 1)]


def test_a_program_computes_on_the_tasks_of_its_devices_and_a_script_may_use_all() -> None:
    assert compute_tasks("pi", DEVICES, [PS, W0, W1]) == [W0, W1]
    assert compute_tasks("script", DEVICES, [PS, W0, W1]) == [PS, W0, W1]
    assert compute_tasks("graph", [], [PS]) == []


@pytest.mark.parametrize(
    ("placed", "used"),
    [
        ({}, []),
        ({"y2": "/job:ps"}, [PS]),
        ({"y2": "/job:ps/task:0/device:GPU:0", "y": "/job:ps"}, [PS]),
        ({"y2": "/task:0"}, [W0]),
        ({"y2": "/job:worker"}, [W0]),
        ({"y": "/device:CPU:0"}, []),
        ({"y": "/job:worker/task:7", "x": "/job:nobody/task:one"}, []),
    ],
)
def test_a_graph_uses_the_tasks_that_its_names_are_placed_on(placed: dict[str, str], used: list[str]) -> None:
    parameters = {"expression": "x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2", "given": {"x": 1}, "placed": placed}
    assert required_tasks("graph", parameters, DEVICES, {"ps": ["a:1"], "worker": ["a:2", "a:3"]}, "a:2") == used


def test_weights_are_on_a_ps_or_the_leading_task() -> None:
    both = {"worker": ["a:2", "a:3"], "ps": ["a:1"], "chief": ["a:0"]}
    led = {"worker": ["a:2"], "chief": ["a:0", "a:4"]}
    plain = {"worker": ["a:2", "a:3"]}
    for modes, addresses, used in (
        (["single", "model-parallel"], both, []),
        (["data-parallel"], both, [PS]),
        (["single", "data-parallel"], led, ["/job:chief/task:0"]),
        (["data-parallel"], plain, []),
    ):
        assert required_tasks("expfit", {"modes": modes}, DEVICES, addresses, "a:2") == used
    assert required_tasks("linear", {}, DEVICES, both, "a:0") == [PS]
    assert required_tasks("linear", {}, DEVICES, led, "a:0") == ["/job:chief/task:0"]
    assert required_tasks("linear", {}, DEVICES, plain, "a:2") == [W0]
    assert required_tasks("pi", {}, DEVICES, both, "a:0") == []


def test_a_program_that_needs_its_tasks_goes_on_only_with_all_of_them() -> None:
    assert blocking_losses("graph", [W0, W1], [], {PS}) == []
    assert blocking_losses("graph", [W0, W1], [W1], {PS, W1}) == [W1]
    assert blocking_losses("graph", [W0, W1], [PS], {PS, W1}) == [W1, PS]
    assert blocking_losses("graph", [], [], {PS, W1}) == []


def test_a_program_that_sees_to_lost_tasks_goes_on_with_one() -> None:
    for program in ("pi", "mean", "linear", "script"):
        assert blocking_losses(program, [W0, W1], [PS], {PS, W1}) == []
        assert blocking_losses(program, [W0, W1], [PS], {PS, W0, W1}) == [W0, W1]
        assert blocking_losses(program, [W0], [W0], {W0}) == [W0]
        assert blocking_losses(program, [], [], {W0}) == []
