"""The variables by which a script finds its cluster and its run: those of the document."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfcluster.processes.runs.script_environment import describe_cluster, describe_run
from tfcluster.programs.context import Context

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
