"""Starting an agent that cannot start: the user gets its own error."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tfcluster import boot, settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport import local


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_an_agent_that_dies_in_its_imports_and_one_without_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_FROM_FOLDER", "import no_such_module")
    with pytest.raises(ClusterError) as caught:
        local.start_agent("early", "localhost")
    assert caught.value.message == (
        "the agent exited before it listened (exit code 1): ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert local.connect("nobody", "localhost") is None


def test_an_agent_that_reports_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ClusterError("no disk", hint="buy one", exit_code=ExitCode.UNHEALTHY).to_json()
    monkeypatch.setattr(boot, "_FROM_FOLDER", f"import json; print(json.dumps({{'error': {error!r}}}))")
    with pytest.raises(ClusterError) as caught:
        local.start_agent("failing", "localhost")
    assert caught.value.to_json() == error


def test_an_agent_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_FROM_FOLDER", "import signal; signal.pause()")
    monkeypatch.setattr(settings, "AGENT_START_SECONDS", 0.1)
    with pytest.raises(ClusterError) as caught:
        local.start_agent("mute", "localhost")
    match = re.fullmatch(r"the agent \(pid (\d+)\) did not become ready within 0\.1 s", caught.value.message)
    assert match, caught.value.message
    os.kill(int(match[1]), signal.SIGKILL)
    os.waitpid(int(match[1]), 0)


@pytest.mark.parametrize("is_known", [False, True])
def test_no_pid_is_named_that_is_not_the_agents(is_known: bool) -> None:
    """The pid in a lock file may be one of another machine, with the same home folder."""
    error = local.AgentProcess("far", "localhost", os.getpid() if is_known else 0).no_socket_error()
    assert "cannot be seen here" in error.message
    assert "on another machine" in error.hint
    assert "kill" not in error.message + error.hint
    assert error.exit_code is ExitCode.UNREACHABLE
