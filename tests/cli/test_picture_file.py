"""Files to draw in are looked at before there is something to draw."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tfcluster.cli.options import PictureFile

FILES = PictureFile((".png", ".svg"))


@pytest.mark.parametrize("name", ["a.png", "A.SVG"])
def test_a_valid_picture_file(tmp_path: Path, name: str) -> None:
    assert FILES.convert(str(tmp_path / name), None, None) == tmp_path / name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.gif", "the name does not end in .png, .svg"),
        ("a", "the name does not end in .png, .svg"),
        ("no/a.png", "there is no folder"),
        ("folder.png", "permission denied"),
    ],
)
def test_an_invalid_picture_file(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(click.BadParameter, match=words):
        FILES.convert(str(tmp_path / name), None, None)
