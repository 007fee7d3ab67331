"""Which scripts run in a fresh interpreter: those that could tell a warm one from it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tfcluster.core.programs import ProgramTraits
from tfcluster.core.runs import RunOptions
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.processes.runs.run_script import needs_fresh_interpreter


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    """The run of a script that nothing is known of."""
    (tmp_path / "train.py").write_text("import tensorflow\n")
    options = RunOptions("script", ProgramTraits(is_script=True), {"path": str(tmp_path / "train.py")})
    return RunPlan("train-1", "demo", options, tmp_path, {}, "localhost:1", [], [])


def is_fresh(plan: RunPlan, **environment: str) -> bool:
    """Whether the script needs a fresh interpreter if variables differ from those of the warm one."""
    return needs_fresh_interpreter({**os.environ, **environment}, plan)


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the warm interpreter."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_variables_that_are_read_at_load_time(plan: RunPlan) -> None:
    assert not is_fresh(plan)
    assert not is_fresh(plan, DATA_DIR="/data", TF_CONFIG="{}", TF_USE_LEGACY_KERAS="1")
    for name in ("PYTHONPATH", "LANG", "OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "LD_LIBRARY_PATH"):
        assert is_fresh(plan, **{name: "another"}), name


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", True),
        ('os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")', True),
        ("config = os.environ['TF_CONFIG']", False),
        ("OMP_NUM_THREADS = 1", False),
    ],
)
def test_variables_that_the_script_names(plan: RunPlan, tmp_path: Path, line: str, expected: bool) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{line}\n")
    assert is_fresh(plan) is expected
    module = replace(plan.options, parameters={"module": "train", "cwd": str(tmp_path)})
    assert is_fresh(replace(plan, options=module)) is expected


@pytest.mark.parametrize("neighbour", ["pytest.py", "pytest/__init__.py"])
def test_a_module_beside_the_script_that_hides_an_imported_one(plan: RunPlan, tmp_path: Path, neighbour: str) -> None:
    (tmp_path / "own.py").touch()
    (tmp_path / "json").mkdir()  # no package
    assert not is_fresh(plan)
    (tmp_path / neighbour).parent.mkdir(exist_ok=True)
    (tmp_path / neighbour).touch()
    assert is_fresh(plan)


def test_a_user_may_ask_for_one(plan: RunPlan) -> None:
    assert is_fresh(replace(plan, options=replace(plan.options, parameters={**plan.options.parameters, "cold": True})))
