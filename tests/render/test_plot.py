"""The picture of expfit's losses, and what is refused before a run."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.render.plot import draw_convergence, refuse_what_cannot_be_drawn

CURVE = [[step, 0.7 / step] for step in range(1, 101)]


def outcome(mode: str) -> dict[str, Any]:
    return {"mode": mode, "loss": 0.007, "max_error": 0.1, "steps": 100, "seconds": 1.25, "curve": CURVE}


ONE = {**outcome("single"), "seed": 7}
ALL = {"modes": [outcome(mode) for mode in ("single", "data-parallel", "model-parallel")], "seed": 7}


@pytest.mark.parametrize("result", [ONE, ALL], ids=["one", "all"])
def test_a_png(tmp_path: Path, result: dict[str, Any]) -> None:
    from matplotlib.image import imread

    path = tmp_path / "curve.png"
    draw_convergence(path, result)
    image = imread(path)
    assert image.shape[0] > 400
    assert image.shape[1] > 600
    assert (image[..., :3] != 1).any(), "there is more than white paper"


def test_an_svg_has_a_line_for_each_mode_and_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    path = tmp_path / "curve.svg"
    draw_convergence(path, ALL)
    tree = ElementTree.parse(path)
    words = [element.text or "" for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert [word.partition(":")[0] for word in words if " in 1.2 s" in word] == [
        "single",
        "data-parallel",
        "model-parallel",
    ]
    assert {"step", "mean squared error", "seed 7"} <= set(words)


def refusal(path: Path) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        refuse_what_cannot_be_drawn(path)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value


def test_without_matplotlib_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = refusal(tmp_path / "curve.png")
    assert (error.message, error.hint) == (
        "--plot needs matplotlib, which is not installed",
        "pip install 'tfcluster[plot]'",
    )


def test_formats_and_folders(tmp_path: Path) -> None:
    for name in ("a.png", "a.SVG", "a.pdf"):
        refuse_what_cannot_be_drawn(tmp_path / name)
    assert refusal(tmp_path / "a.gif").message.endswith("a.gif: the name does not end in .png, .svg, .pdf")
    assert refusal(tmp_path / "a").hint == "Write --plot a.png"
    assert refusal(tmp_path / "no" / "a.png").hint == f"mkdir -p {tmp_path / 'no'}"
