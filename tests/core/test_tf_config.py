"""TF_CONFIG: which jobs are in its cluster, and what the user is told of the others."""

from __future__ import annotations

from tfcluster.core.tf_config import make_tf_config, refusal_notes

ADDRESSES = {"chief": ["a:1"], "ps": ["a:2"], "worker": ["a:3", "b:3"], "evaluator": ["b:4"], "trainer": ["b:5"]}


def test_an_evaluator_is_never_in_the_cluster_and_has_its_own_place() -> None:
    strategy = {"chief": ["a:1"], "ps": ["a:2"], "worker": ["a:3", "b:3"]}
    assert make_tf_config(ADDRESSES, "worker", 1) == {"cluster": strategy, "task": {"type": "worker", "index": 1}}
    assert make_tf_config(ADDRESSES, "evaluator", 0) == {"cluster": strategy, "task": {"type": "evaluator", "index": 0}}


def test_a_job_that_strategies_refuse_is_only_in_its_own_cluster() -> None:
    assert "trainer" not in make_tf_config(ADDRESSES, "worker", 0)["cluster"]
    assert make_tf_config(ADDRESSES, "trainer", 0)["cluster"]["trainer"] == ["b:5"]


def test_the_user_is_told_which_jobs_are_left_out() -> None:
    assert refusal_notes(["chief", "worker", "ps", "evaluator"]) == []
    (note,) = refusal_notes(ADDRESSES)
    assert note == "TF_CONFIG leaves out trainer: strategies refuse other jobs than chief, worker, ps, evaluator"
