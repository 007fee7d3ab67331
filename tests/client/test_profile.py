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
from tfcluster.protocol.api.processes import ProfileReply, ProfileRequest, TracePart


def test_a_host_that_is_away_hides_no_failure_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    topology = topology_of([task_of("worker:0", "alpha"), task_of("worker:1", "beta")])
    away = ClusterError("beta cannot be reached", hint="Try again.", exit_code=ExitCode.UNREACHABLE)
    replies = {"alpha": ProfileReply((), {"worker:0": "it is failed"})}
    monkeypatch.setattr(profile, "read_topology", lambda cluster: topology)
    monkeypatch.setattr(profile, "map_hosts", lambda *arguments: (replies, {"beta": away}))
    cluster: Any = SimpleNamespace(is_local=False, name="demo")
    with pytest.raises(ClusterError) as caught:
        profile.capture_profile(cluster, [], 1.0, tmp_path / "logs")
    assert "beta cannot be reached" in caught.value.message
    assert "there is no trace of worker:0: it is failed" in caught.value.message
    assert caught.value.hint.startswith("Try again. `tfcluster status`")
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert not (tmp_path / "logs").exists()


def test_what_another_command_captures_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile, "read_topology", lambda cluster: topology_of([task_of("worker:0", "alpha")]))
    monkeypatch.setattr(profile, "time", SimpleNamespace(strftime=lambda text: "now"))
    trace = tmp_path / "plugins" / "profile" / ".now" / "worker_1.xplane.pb"
    trace.parent.mkdir(parents=True)
    trace.touch()
    cluster: Any = SimpleNamespace(is_local=False, name="demo")
    with pytest.raises(ClusterError, match="File exists"):
        profile.capture_profile(cluster, [], 1.0, tmp_path)
    assert trace.exists()


TRACE = base64.b64encode(b"trace").decode()


class Response(list[TracePart]):
    """What a host sends."""

    def result(self) -> ProfileReply:
        return ProfileReply((), {})


def capture(folder: Path, asked: str, name: str, data: str) -> None:
    """Capture the trace of a task on a host that sends some data under some name."""
    response = Response([TracePart(name, data)])
    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=lambda request, timeout: response))
    (folder / "logs").mkdir()
    profile._capture_on(cluster, "alpha", ProfileRequest((asked,), 1.0), folder / "logs")


@pytest.mark.parametrize(
    ("asked", "name", "data", "problem"),
    [
        ("worker:0", "worker:1", TRACE, "'.*', which was not requested"),
        ("worker:0", "../../escaped", TRACE, "'.*', which was not requested"),
        ("worker:0", "/tmp/escaped", TRACE, "'.*', which was not requested"),
        ("../../escaped:0", "../../escaped:0", TRACE, "'.*', which was not requested"),  # hosts tell names of tasks
        ("worker:0", "worker:0", "a", "worker:0 that cannot be decoded"),
    ],
)
def test_what_is_not_the_trace_that_was_asked_for_is_not_written(
    tmp_path: Path, asked: str, name: str, data: str, problem: str
) -> None:
    with pytest.raises(ClusterError, match=f"alpha sent a trace of {problem}"):
        capture(tmp_path, asked, name, data)
    assert [path.name for path in tmp_path.rglob("*")] == ["logs"]
