"""The error of a group of processes."""

from __future__ import annotations

from tfcluster.core.groups import Member
from tfcluster.processes.groups.coordinator import describe_failure
from tfcluster.processes.groups.link import Exited

MEMBER = Member("worker", 0, 0, "localhost", "localhost")


def hint_of(failure: str) -> str:
    report = Exited(rank=0, exit_code=1, failure=failure, was_idle=False)
    return describe_failure(MEMBER, report, [], [], interrupted=False).error.hint


def test_fit_of_keras_3_has_a_hint() -> None:
    assert "pip install tf_keras" in hint_of("ValueError: Attempt to convert a value (PerReplica:{")
    assert hint_of("ValueError: no data") == ""
