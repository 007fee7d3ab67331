"""A profile of several hosts: why each trace is missing."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster.client import profile
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.profile import ProfileReply, ProfileRequest, TracePart


def test_a_host_that_is_away_hides_no_failure_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    topology = topology_of([task_of("worker:0", "alpha"), task_of("worker:1", "beta")])
    away = ClusterError("beta cannot be reached", hint="Try again.", exit_code=ExitCode.UNREACHABLE)
    outcomes = {"alpha": ProfileReply((), {"worker:0": "it is failed"}), "beta": away}
    monkeypatch.setattr(profile, "read_topology", lambda cluster: topology)
    monkeypatch.setattr(profile, "map_hosts", lambda *arguments: outcomes)
    cluster: Any = SimpleNamespace(is_local=False, name="demo")
    with pytest.raises(ClusterError) as caught:
        profile.capture_profile(cluster, [], 1.0, tmp_path / "logs")
    assert "beta cannot be reached" in caught.value.message
    assert "there is no trace of worker:0: it is failed" in caught.value.message
    assert caught.value.hint.startswith("Try again. `tfcluster status`")
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("name", ["worker:1", "../../escaped", "/tmp/escaped"])
def test_a_trace_that_was_not_asked_for_is_not_written(tmp_path: Path, name: str) -> None:
    class Response(list[TracePart]):
        def result(self) -> ProfileReply:
            return ProfileReply((), {})

    response = Response([TracePart(name, base64.b64encode(b"trace").decode())])
    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=lambda request, timeout: response))
    (tmp_path / "logs").mkdir()
    with pytest.raises(ClusterError, match=r"alpha sent a trace of '.*', which was not asked for"):
        profile._capture_on(cluster, "alpha", ProfileRequest(("worker:0",), 1.0), tmp_path / "logs")
    assert [path.name for path in tmp_path.rglob("*")] == ["logs"]
