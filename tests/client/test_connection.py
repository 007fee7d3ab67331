"""The options of a run in Python: a wrong one is a ClusterError, and none is ignored."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tfcluster.client.runs.submission import RunSubmission
from tfcluster.connection import ClusterConnection
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.ui import plot

RESULT = {"event": "result", "state": "succeeded", "result": {"loss": 0.5}}


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> ClusterConnection:
    """A connection whose runs succeed without a cluster."""

    def events(request: RunSubmission, cluster: Any) -> Generator[dict[str, Any], None, None]:
        yield RESULT

    monkeypatch.setattr(RunSubmission, "events", events)
    connection = object.__new__(ClusterConnection)
    connection._cluster = None  # type: ignore[assignment]
    return connection


@pytest.mark.parametrize(
    ("program", "options", "problem"),
    [
        ("expfit", {"compare": True, "mode": "single"}, "leave out --mode"),
        ("expfit", {"plot": "x.png", "detach": True}, "cannot be combined with --detach"),
        ("linear", {"steps": 3, "epochs": 3}, "give only one"),
        ("pi", {"samples": "many"}, "many"),
        ("pi", {"placement_graph": "x.svg"}, "placement_graph"),
        ("pi", {"cluster": "other"}, "cluster is not an option"),
        ("pi", {"output": "text"}, "output is not an option"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_cluster(
    connection: ClusterConnection, program: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ClusterError, match=problem) as caught:
        connection.run(program, **options)
    assert caught.value.exit_code is ExitCode.USAGE


def test_the_plot_of_a_run_is_drawn(
    connection: ClusterConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[object] = []
    monkeypatch.setattr(plot, "refuse_without_matplotlib", lambda: None)
    monkeypatch.setattr(plot, "draw_convergence", lambda *arguments: drawn.append(arguments))
    assert connection.run("expfit", plot=tmp_path / "x.png") == {"loss": 0.5}
    assert drawn == [(tmp_path / "x.png", {"loss": 0.5})]
