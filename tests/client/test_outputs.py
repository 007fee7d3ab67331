"""Where the files and the traces of a run are written here, whatever a host lists and sends."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster.client import profile
from tfcluster.client.cluster import Cluster
from tfcluster.client.runs.outputs import HostOutputs, _query, fetch, reject_conflicts
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.files import OutputBlock, OutputFile, OutputsReply, ReadOutputsRequest
from tfcluster.protocol.api.processes import ProfileReply, ProfileRequest, TracePart

CONTENT = b"of the run"


class Response(list[OutputBlock]):
    def close_and_reap(self) -> None:
        """Nothing is open."""


def stream(request: ReadOutputsRequest, **options: object) -> Response:
    data = base64.b64encode(CONTENT).decode()
    return Response(OutputBlock(path, each) for path in request.paths for each in (data, ""))


def copy(folder: Path, *files: OutputFile) -> None:
    """Fetch what a host lists."""
    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=stream))
    outputs = HostOutputs("beta", "train-1", files)
    reject_conflicts(outputs, folder)
    fetch(cast(Cluster, cluster), outputs, folder, lambda size: None)


def file(path: str) -> OutputFile:
    return OutputFile(path, len(CONTENT), 1_000_000_000, False, None)


def link(path: str, target: Path) -> OutputFile:
    return OutputFile(path, 0, 1_000_000_000, False, str(target))


def test_files_and_links_are_made(tmp_path: Path) -> None:
    copy(tmp_path / "out", file("a"), file("deep/er/b"), link("deep/latest", Path("er")))
    assert (tmp_path / "out/deep/latest/b").read_bytes() == (tmp_path / "out/a").read_bytes() == CONTENT
    copy(tmp_path / "out", file("a"), file("deep/er/b"), link("deep/latest", Path("er")))


def test_a_file_appears_when_all_of_it_has_arrived_and_is_not_copied_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[bool] = []
    asked: list[str] = []

    class Blocks(Response):
        def __iter__(self) -> Iterator[OutputBlock]:
            for block in super().__iter__():
                seen.append((out / "a").exists())
                yield block

    def stream_slowly(request: ReadOutputsRequest, **options: object) -> Response:
        asked.extend(request.paths)
        return Blocks(stream(request))

    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=stream_slowly))
    for files in ([file("a")], [file("a"), file("b")]):
        fetched = fetch(cluster, HostOutputs("beta", "train-1", files), out, lambda size: None)
    assert seen[:2] == [False, False], "neither before its content nor after it"
    assert asked == ["a", "b"]
    assert (fetched.files, fetched.unchanged) == (1, 1)


def test_other_files_of_the_same_names_are_an_error_before_anything_is_copied(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    with pytest.raises(ClusterError, match="has other files of the same names: b") as caught:
        copy(tmp_path, file("a"), file("b"))
    assert caught.value.exit_code is ExitCode.USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_text() == "mine"


@pytest.mark.parametrize("below", [file("d/authorized_keys"), link("d/e/authorized_keys", Path("x"))])
def test_nothing_is_written_below_a_link_that_the_host_lists(tmp_path: Path, below: OutputFile) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    with pytest.raises(ClusterError, match=r"out/d is a symbolic link: nothing is written below it"):
        copy(tmp_path / "out", link("d", elsewhere), below)
    assert list(elsewhere.iterdir()) == []


def test_nothing_is_written_below_a_link_of_an_earlier_fetch(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    copy(tmp_path / "out", link("latest", elsewhere))
    with pytest.raises(ClusterError, match=r"out/latest is a symbolic link"):
        copy(tmp_path / "out", file("latest/model"))
    assert list(elsewhere.iterdir()) == []


def test_a_link_with_the_name_of_an_incomplete_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    copy(tmp_path / "out", link("a.tfcluster-part", elsewhere), file("a"))
    assert not elsewhere.exists()
    assert (tmp_path / "out/a").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("blocks", "modified_ns", "problem"),
    [
        ([("../other", CONTENT)], 1, r"a file arrived that was not requested: '\.\./other'"),
        ([("a", CONTENT), ("b", b"")], 1, "a file arrived before the one before it was complete: 'b'"),
        ([("a", None), ("a", b"")], 1, "the host sent a file that cannot be written"),  # which cannot be decoded
        ([("a", b""), ("a", b"")], 10**40, "the host sent a file that cannot be written"),
    ],
)
def test_what_is_not_the_files_that_were_asked_for_is_an_error_and_not_written(
    tmp_path: Path, blocks: list[tuple[str, bytes | None]], modified_ns: int, problem: str
) -> None:
    def stream_wrong(request: ReadOutputsRequest, **options: object) -> Response:
        return Response(
            OutputBlock(path, "a" if data is None else base64.b64encode(data).decode()) for path, data in blocks
        )

    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=stream_wrong))
    files = tuple(OutputFile(path, 0, modified_ns, False, None) for path in "ab")
    with pytest.raises(ClusterError, match=problem):
        fetch(cluster, HostOutputs("beta", "train-1", files), tmp_path / "out", lambda size: None)
    assert {path.name for path in tmp_path.rglob("*")} <= {"out", ".tfclusterignore"}


@pytest.mark.parametrize("run", ["../train-1", "/train-1", "..", "train-1/../../x"])
def test_a_run_whose_id_is_a_path_is_refused(run: str) -> None:
    class Outputs(list[Any]):
        def result(self) -> OutputsReply:
            return OutputsReply(run)

        def close_and_reap(self) -> None:
            """Nothing is open."""

    client = SimpleNamespace(transport=SimpleNamespace(has_state=lambda: True), stream=lambda *args, **more: Outputs())
    cluster: Any = SimpleNamespace(
        name="demo", is_local=True, hosts=["localhost"], connect=lambda host: client, head="localhost"
    )
    with pytest.raises(ClusterError, match="has answered with a run that cannot exist"):
        _query(cluster, "train", {}, "beta")


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


class Traces(list[TracePart]):
    """What a host sends."""

    def result(self) -> ProfileReply:
        return ProfileReply((), {})

    def close(self) -> None:
        """Nothing is to be ended."""


def capture(folder: Path, asked: str, name: str, data: str) -> None:
    """Capture the trace of a task on a host that sends some data under some name."""
    response = Traces([TracePart(name, data)])
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
