"""A profile of several hosts: why each trace is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster.client import profile
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.profile import ProfileReply


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
