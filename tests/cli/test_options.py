"""The types of options: times in the past, and images to write."""

from __future__ import annotations

import time
from pathlib import Path

import click
import pytest

from tfcluster.cli.options import OutputFilePath, Timestamp

NOW = 1795291200.0


def test_a_duration_is_relative_to_now_and_an_iso_time_has_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    durations = {"10m": 600, "1h30m": 5400, "2d": 172_800, "1d2h3m4.5s": 93_784.5, "0s": 0, "90s": 90}
    for text, ago in durations.items():
        assert Timestamp().convert(text, None, None) == NOW - ago
    for text in ("2026-11-21T20:00:00Z", "2026-11-21T21:00+01:00", "2026-11-21 20:00:00.000z"):
        assert Timestamp().convert(text, None, None) == NOW


def test_an_iso_time_without_a_zone_is_in_the_local_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    try:
        assert Timestamp().convert("2026-11-21T22:00", None, None) == NOW
        assert Timestamp().convert("2026-11-21", None, None) == NOW - 22 * 3600
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "10", "m", "30m1h", "-5m", "yesterday", "2026-13-01", "5 m", "0001-01-01", "9" * 400 + "d"]
)
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time \\(10m, 1h30m, 2d, "):
        Timestamp().convert(text, None, None)


FILES = OutputFilePath((".png", ".svg"))


def test_an_image_file_has_a_known_ending_and_can_be_written(tmp_path: Path) -> None:
    for name in ("a.png", "A.SVG"):
        assert FILES.convert(str(tmp_path / name), None, None) == tmp_path / name
    (tmp_path / "folder.png").mkdir()
    for name, words in {
        "a.gif": "the name does not end in .png, .svg",
        "a": "the name does not end in .png, .svg",
        "no/a.png": "there is no folder",
        "folder.png": "permission denied",
    }.items():
        with pytest.raises(click.BadParameter, match=words):
            FILES.convert(str(tmp_path / name), None, None)
