"""Where the files of a run are written here, whatever a host lists."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster.client.cluster import Cluster
from tfcluster.client.runs.outputs import HostOutputs, _query, fetch, reject_conflicts
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.files import OutputBlock, OutputFile, OutputsReply, ReadOutputsRequest

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


def test_a_file_that_was_not_asked_for_is_not_written(tmp_path: Path) -> None:
    def stream_another(request: ReadOutputsRequest, **options: object) -> Response:
        return Response([OutputBlock("../other", base64.b64encode(CONTENT).decode())])

    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=stream_another))
    with pytest.raises(ClusterError, match=r"a file arrived that was not requested: '\.\./other'"):
        fetch(cluster, HostOutputs("beta", "train-1", (file("a"),)), tmp_path / "out", lambda size: None)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", ".tfclusterignore"]


def test_a_file_cannot_end_as_another_one(tmp_path: Path) -> None:
    def stream_mixed(request: ReadOutputsRequest, **options: object) -> Response:
        return Response([OutputBlock("a", base64.b64encode(CONTENT).decode()), OutputBlock("b", "")])

    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=stream_mixed))
    outputs = HostOutputs("beta", "train-1", (file("a"), file("b")))
    with pytest.raises(ClusterError, match="a file arrived before the one before it was complete: 'b'"):
        fetch(cluster, outputs, tmp_path / "out", lambda size: None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".tfclusterignore"]


@pytest.mark.parametrize(("data", "modified_ns"), [("a", 1_000_000_000), ("", 10**40)])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, data: str, modified_ns: int) -> None:
    def stream_wrong(request: ReadOutputsRequest, **options: object) -> Response:
        return Response([OutputBlock("a", data), OutputBlock("a", "")])

    cluster: Any = SimpleNamespace(connect=lambda host: SimpleNamespace(stream=stream_wrong))
    outputs = HostOutputs("beta", "train-1", (OutputFile("a", 0, modified_ns, False, None),))
    with pytest.raises(ClusterError, match="the host sent a file that cannot be written"):
        fetch(cluster, outputs, tmp_path / "out", lambda size: None)


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
