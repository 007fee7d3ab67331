"""The file that `tfcluster init` writes is valid, whichever of its keys are put to use."""

from __future__ import annotations

import re

import pytest

from tfcluster.cli.spec import TEMPLATE
from tfcluster.spec.load import parse_spec
from tfcluster.spec.policies import Backoff, JobRestart, Logs, RestartSpec
from tfcluster.spec.schema import Job, Spec

COMMENTED_OUT = re.compile(r"^( *)#(?=\w+: )", re.MULTILINE)
KEYS = [match.start() for match in COMMENTED_OUT.finditer(TEMPLATE)]


def test_the_template_has_one_ps_and_two_workers() -> None:
    spec = parse_spec(TEMPLATE, "cluster.yaml", "cluster")
    assert spec == Spec(name="cluster", jobs={"ps": Job(tasks=(None,)), "worker": Job(tasks=(None, None))})


@pytest.mark.parametrize("start", KEYS)
def test_each_commented_key_is_valid(start: int) -> None:
    text = TEMPLATE[:start] + COMMENTED_OUT.sub(r"\1", TEMPLATE[start:], count=1)
    parse_spec(text, "cluster.yaml", "cluster")


def test_all_commented_keys_are_valid_together() -> None:
    spec = parse_spec(COMMENTED_OUT.sub(r"\1", TEMPLATE), "cluster.yaml", "cluster")
    in_the_place_of_hosts = {"hostfile", "slurm", "kubernetes", "host"}
    assert spec.model_fields_set == set(Spec.model_fields) - in_the_place_of_hosts
    assert spec.jobs["worker"].model_fields_set == set(Job.model_fields)
    assert spec.jobs["worker"].restart == JobRestart(policy="never")
    assert spec.restart.model_fields_set == set(RestartSpec.model_fields)
    assert spec.restart.backoff.model_fields_set == set(Backoff.model_fields)
    assert spec.restart == RestartSpec()  # it shows the defaults
    assert spec.logs.model_fields_set == set(Logs.model_fields)
    assert spec.logs == Logs()
