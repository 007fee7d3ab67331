"""Which scripts run in a fresh interpreter: those that could tell a warm one from it."""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from tests.conftest import ROOT
from tfcluster.core.runs import RunOptions
from tfcluster.processes.runs import load_variables
from tfcluster.processes.runs.program_process import enable_stack_dump
from tfcluster.processes.runs.run_plan import STACKS, RunPlan
from tfcluster.processes.runs.run_script import needs_fresh_interpreter
from tfcluster.processes.runs.script_environment import describe_cluster, describe_run
from tfcluster.programs.context import Context


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    """The run of a script that nothing is known of."""
    (tmp_path / "train.py").write_text("import tensorflow\n")
    options = RunOptions("script", {"path": str(tmp_path / "train.py")})
    return RunPlan("train-1", "demo", options, tmp_path, {}, "localhost:1", [], [])


def is_fresh(plan: RunPlan, **environment: str) -> bool:
    """Whether the script needs a fresh interpreter if variables differ from those of the warm one."""
    return needs_fresh_interpreter({**os.environ, **environment}, plan)


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the warm interpreter. Imports have changed its environment since."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(load_variables, "_kept", dict(os.environ))


def test_variables_that_are_read_at_load_time(plan: RunPlan) -> None:
    assert not is_fresh(plan)
    assert not is_fresh(plan, DATA_DIR="/data", TF_CONFIG="{}", TF_USE_LEGACY_KERAS="1")
    names = (
        "PYTHONPATH LANG LD_LIBRARY_PATH HOME OMP_NUM_THREADS TF_CPP_MIN_LOG_LEVEL TF2_BEHAVIOR HDF5_USE_FILE_LOCKING"
    )
    for name in [*names.split(), "NUMPY_MADVISE_HUGEPAGE", "GCS_APPEND_MODE"]:
        assert is_fresh(plan, **{name: "another"}), name


def test_the_environment_is_compared_with_the_one_before_the_imports(
    plan: RunPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(os.environ)
    monkeypatch.setenv("HDF5_PLUGIN_PATH", "disable")  # as `import tensorflow` does
    assert not needs_fresh_interpreter(before, plan)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", True),
        ('os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")', True),
        ("os.environ.update(HDF5_USE_FILE_LOCKING='FALSE')", True),
        ("os.environ |= dict(A=1, OMP_NUM_THREADS = '1')", True),
        ("config = os.environ['TF_CONFIG']", False),
        ("os.environ['PYTHONHASHSEED'] = '0'", False),  # too late in any interpreter
        ("print(name.startswith('TF_'), name == (OMP_NUM_THREADS == 1))", False),
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
    (tmp_path / "pytest.npy").touch()  # no module
    (tmp_path / "tfcluster").mkdir()
    (tmp_path / "tfcluster" / "__init__.py").touch()  # as in a clone: a fresh interpreter imports the cluster's too
    assert not is_fresh(plan)
    (tmp_path / neighbour).parent.mkdir(exist_ok=True)
    (tmp_path / neighbour).touch()
    assert is_fresh(plan)


def test_a_user_may_ask_for_one(plan: RunPlan) -> None:
    assert is_fresh(replace(plan, options=replace(plan.options, parameters={**plan.options.parameters, "cold": True})))


def test_variables_that_are_set_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for change in ("putenv", "unsetenv"):
        monkeypatch.setattr(os, change, getattr(os, change))
    monkeypatch.setattr(
        load_variables, "_kept", {"OMP_NUM_THREADS": "2", "XLA_FLAGS": "--dump", **load_variables._kept}
    )
    names: list[str] = []
    library = {"__name__": "tensorflow.python.distribute", "os": os}
    with mock.patch.dict(os.environ):
        load_variables.watch(names.append)
        os.environ.update(OMP_NUM_THREADS="2", TF_CPP_MIN_LOG_LEVEL="2", DATA_DIR="/data")  # the first two as they were
        exec("os.environ['TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY'] = 'True'", library)
        assert names == []
        os.environ.update(HDF5_USE_FILE_LOCKING="FALSE", DATA_DIR="/more")
        os.environ["HDF5_USE_FILE_LOCKING"] = "TRUE"
        os.environ.setdefault("GOTO_NUM_THREADS", "1")
        os.environ |= {"NPY_DISABLE_CPU_FEATURES": ""}
        del os.environ["OMP_NUM_THREADS"]
        os.unsetenv("XLA_FLAGS")
        assert names == [
            *("HDF5_USE_FILE_LOCKING", "GOTO_NUM_THREADS", "NPY_DISABLE_CPU_FEATURES"),
            *("OMP_NUM_THREADS", "XLA_FLAGS"),
        ]


DEVICES = ("/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:1/device:CPU:0")
CONTEXT = Context(
    "train-1",
    {"ps": ["a:1"], "worker": ["a:2", "b:3"]},
    DEVICES,
    lambda *event, **fields: None,
    head_address="a:2",
    output_folder=Path("/runs/train-1/files"),
)


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_a_script_finds_its_run(seed: int | None) -> None:
    own = {"TFCLUSTER_RUN": "train-1", "TFCLUSTER_OUTPUT": "/runs/train-1/files"}
    assert describe_run(CONTEXT, seed) == {**own, **({} if seed is None else {"TFCLUSTER_SEED": str(seed)})}


def test_a_script_finds_its_cluster() -> None:
    variables = describe_cluster(CONTEXT)
    assert (variables["TFCLUSTER_MASTER"], variables["TFCLUSTER_DEVICES"]) == ("grpc://a:2", ",".join(DEVICES))
    config = json.loads(variables["TF_CONFIG"])
    assert config["task"] == {"type": "chief", "index": 0}
    assert {job: len(tasks) for job, tasks in config["cluster"].items()} == {"ps": 1, "worker": 2, "chief": 1}
    documented = set(re.findall(r"^\| `(TF\w+)` \|", (ROOT / "docs" / "scripts.md").read_text(), re.MULTILINE))
    assert documented == {"TFCLUSTER_CLUSTER", *variables, *describe_run(CONTEXT, 0)}


def test_without_a_high_descriptor_the_file_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[os.stat_result] = []

    def refuse(fd: int, *arguments: int) -> int:
        opened.append(os.fstat(fd))
        raise OSError

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    enable_stack_dump(tmp_path)
    assert [each.st_ino for each in opened] == [(tmp_path / STACKS).stat().st_ino]
    files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert os.path.realpath(tmp_path / STACKS) not in files
