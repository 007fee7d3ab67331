"""The error that reaches the user, and the exit codes of the contract."""

from __future__ import annotations

import json
import traceback

import pytest

from tfcluster.errors import ClusterError, ExitCode


def test_the_exit_codes_are_those_of_the_contract() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        **{"DONE": 0, "FAILED": 1, "USAGE": 2, "NOT_RUNNING": 3, "UNHEALTHY": 4, "UNREACHABLE": 5},
        **{"TIMED_OUT": 124, "INTERRUPTED": 130, "TERMINATED": 143},
    }


@pytest.mark.parametrize("code", list(ExitCode))
def test_an_error_survives_its_way_from_the_agent(code: ExitCode) -> None:
    error = ClusterError("two\nlines", hint="what to type", exit_code=code)
    found = ClusterError.from_json(json.loads(json.dumps(error.to_json())))
    assert (found.message, found.hint, found.exit_code) == ("two\nlines", "what to type", code)
    assert isinstance(found.exit_code, ExitCode)


def test_an_error_is_a_failure_without_a_hint_unless_told_otherwise_and_a_traceback_shows_it() -> None:
    error = ClusterError("what happened")
    assert (str(error), error.hint, error.exit_code) == ("what happened", "", ExitCode.FAILED)
    error = ClusterError("there is no cluster", hint="`tfcluster up` starts one.")
    assert traceback.format_exception_only(error)[-1].endswith(
        "ClusterError: there is no cluster\nhint: `tfcluster up` starts one.\n"
    )
    assert str(ClusterError("there is no cluster")) == "there is no cluster"
