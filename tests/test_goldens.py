"""What commands print of the cast, and what the page gets, whole; and that each file in tests/golden is compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cast import CLUSTERS, CastCluster, print_at, tfcluster
from tests.cast import cast as cast
from tests.conftest import wait_for
from tests.goldens import FOLDER, Update, golden, golden_json
from tests.recorded_page import RecordedApi
from tfcluster.dashboard.api import Api
from tfcluster.dashboard.feed import Body, Feed
from tfcluster.dashboard.reader import Reader
from tfcluster.protocol.serialization import to_json
from tfcluster.ui.listings import show_clusters

#: The runs of which the page gets more than the list shows: curves, members and notes, and trials.
PAGE_RUNS = ("linear-0003", "sweep-0004")


@pytest.mark.parametrize(
    ("file", "words", "columns"),
    [
        ("status.txt", "status", 100),
        ("status-narrow.txt", "status", 60),
        ("status-wide.txt", "status", 1000),
        ("runs.txt", "runs", 100),
        ("runs-narrow.txt", "runs", 60),
        ("runs-wide.txt", "runs", 1000),
        ("runs-of-a-sweep.txt", "runs sweep-0004", 100),
        ("runs-of-a-launch.txt", "runs launch-0005", 100),
        ("runs-that-run.txt", "runs train-0007", 100),
        ("devices.txt", "devices", 1000),
        ("metrics.txt", "metrics", 100),
    ],
)
def test_what_a_command_prints(cast: CastCluster, file: str, words: str, columns: int) -> None:
    golden(file, tfcluster(*words.split(), columns=columns))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("status.json", "status"),
        ("runs.json", "runs"),
        ("runs-of-a-sweep.json", "runs sweep-0004"),
        ("devices.json", "devices"),
    ],
)
def test_the_json_of_a_command(cast: CastCluster, file: str, words: str) -> None:
    golden_json(file, json.loads(tfcluster(*words.split(), "-o", "json").partition("\n")[0]))


def test_the_list_of_clusters(cast: CastCluster) -> None:
    golden("ls.txt", print_at(100, lambda: show_clusters(CLUSTERS)))
    golden_json("ls.json", [to_json(each) for each in CLUSTERS])


def test_what_the_page_and_its_readers_get(cast: CastCluster) -> None:
    feed = Feed(cast)
    owner = Api(feed)
    reader = Reader(owner)

    def get(asked: Api | Reader, path: str) -> Any:
        answer = asked.answer("GET", path, {}, {})
        return json.loads(answer.data) if isinstance(answer, Body) else answer

    with closing(feed):
        feed.start()
        wait_for(lambda: [*get(owner, "/api/view")["problems"]] == ["gamma"])
        golden_json("page.json", get(owner, "/api/view"))
        golden_json("page-of-readers.json", get(reader, "/api/view"))
        golden_json("page-runs.json", [get(owner, f"/api/runs/{run}") for run in PAGE_RUNS])
        golden_json("page-runs-of-readers.json", [get(reader, f"/api/runs/{run}") for run in PAGE_RUNS])


def test_each_file_is_compared_by_a_test() -> None:
    sources = "".join(path.read_text() for path in Path(__file__).parent.rglob("*.py"))
    assert [path.name for path in sorted(FOLDER.iterdir()) if f'"{path.name}"' not in sources] == []


def test_an_output_that_has_changed_is_shown_as_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Update, "is_on", False)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-CLUSTER .*\+none\n"):
        golden("ls.txt", "none")
    with pytest.raises(pytest.fail.Exception, match=r"there is no tests/golden/no\.txt"):
        golden("no.txt", "none")


def test_the_recorded_page_has_the_fields_of_the_real_one() -> None:
    real, recorded = json.loads((FOLDER / "page.json").read_text()), RecordedApi().view()
    parts: list[Callable[[Any], Any]] = [
        lambda view: view,
        lambda view: view["status"],
        *(lambda view, name=name: view["status"][name][0] for name in ("hosts", "tasks", "runs")),
        lambda view: view["runs"][0],
        lambda view: view["events"][0],
    ]
    assert [part(recorded).keys() ^ part(real).keys() for part in parts] == [set()] * 7
