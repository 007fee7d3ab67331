"""Which tasks a run requires, and which lost tasks it can do without."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.core.programs import ProgramTraits, blocking_losses, compute_tasks, fails_at_restart, required_tasks
from tfcluster.programs.registry import find

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
DEVICES = [f"/job:worker/replica:0/task:{task}/device:CPU:{cpu}" for task in (0, 1) for cpu in (0, 1)]


def traits_of(program: str, parameters: dict[str, Any]) -> ProgramTraits:
    installed = find(program)
    assert installed is not None
    return installed.traits(parameters)


def test_a_program_computes_on_the_tasks_of_its_devices_and_a_script_may_use_all() -> None:
    assert compute_tasks(traits_of("pi", {}), DEVICES, [PS, W0, W1]) == [W0, W1]
    assert compute_tasks(traits_of("script", {}), DEVICES, [PS, W0, W1]) == [PS, W0, W1]
    assert compute_tasks(ProgramTraits(), [], [PS]) == []


@pytest.mark.parametrize(
    ("placed", "expected"),
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
def test_a_graph_requires_the_tasks_that_its_names_are_placed_on(placed: dict[str, str], expected: list[str]) -> None:
    expression = "x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2"
    traits = traits_of("graph", {"expression": expression, "overrides": {"x": 1}, "placed": placed})
    assert required_tasks(traits, DEVICES, {"ps": ["a:1"], "worker": ["a:2", "a:3"]}, "a:2") == expected


def test_weights_are_on_a_ps_or_the_leading_task() -> None:
    both = {"worker": ["a:2", "a:3"], "ps": ["a:1"], "chief": ["a:0"]}
    led = {"worker": ["a:2"], "chief": ["a:0", "a:4"]}
    plain = {"worker": ["a:2", "a:3"]}
    for modes, addresses, expected in (
        (["single", "model-parallel"], both, []),
        (["data-parallel"], both, [PS]),
        (["single", "data-parallel"], led, ["/job:chief/task:0"]),
        (["data-parallel"], plain, []),
    ):
        assert required_tasks(traits_of("expfit", {"modes": modes}), DEVICES, addresses, "a:2") == expected
    linear = traits_of("linear", {})
    assert required_tasks(linear, DEVICES, both, "a:0") == [PS]
    assert required_tasks(linear, DEVICES, {**both, "ps": ["a:1", "a:4"]}, "a:0") == [PS, "/job:ps/task:1"]
    assert required_tasks(linear, DEVICES, led, "a:0") == ["/job:chief/task:0"]
    assert required_tasks(linear, DEVICES, plain, "a:2") == [W0]
    assert required_tasks(traits_of("pi", {}), DEVICES, both, "a:0") == []


def test_a_program_that_needs_its_tasks_continues_only_with_all_of_them_a_fault_tolerant_one_with_one() -> None:
    traits = ProgramTraits()
    assert blocking_losses(traits, [W0, W1], [], {PS}) == []
    assert blocking_losses(traits, [W0, W1], [W1], {PS, W1}) == [W1]
    assert blocking_losses(traits, [W0, W1], [PS], {PS, W1}) == [W1, PS]
    assert blocking_losses(traits, [], [], {PS, W1}) == []
    for program in ("pi", "mean", "linear", "script"):
        traits = traits_of(program, {})
        assert blocking_losses(traits, [W0, W1], [PS], {PS, W1}) == []
        assert blocking_losses(traits, [W0, W1], [PS], {PS, W0, W1}) == [W0, W1]
        assert blocking_losses(traits, [W0], [W0], {W0}) == [W0]
        assert blocking_losses(traits, [], [], {W0}) == []
    for program, parameters in (
        ("graph", {"expression": "1", "overrides": {}, "placed": {}}),
        ("expfit", {"modes": []}),
    ):
        assert not traits_of(program, parameters).fault_tolerant


@pytest.mark.parametrize(
    ("program", "is_lost"), [("pi", False), ("mean", False), ("linear", False), ("script", True), ("expfit", True)]
)
def test_a_restart_ends_runs_of_programs_that_do_not_wait_for_their_tasks(program: str, is_lost: bool) -> None:
    traits = traits_of(program, {"modes": []})
    assert fails_at_restart(traits, [W0, W1], [PS], {W0, W1, PS}) is is_lost
    assert fails_at_restart(traits, [W0], [PS], {PS}) is is_lost
    assert fails_at_restart(traits, [W0], [], {PS, W1}) is False
