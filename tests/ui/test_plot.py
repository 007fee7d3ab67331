"""The picture of expfit's losses."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.ui.plot import draw_convergence, refuse_without_matplotlib

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


def test_without_matplotlib_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ClusterError) as caught:
        refuse_without_matplotlib()
    assert caught.value.exit_code == ExitCode.USAGE
    assert (caught.value.message, caught.value.hint) == (
        "--plot requires matplotlib, which is not installed",
        f"Type `{sys.executable} -m pip install matplotlib`.",
    )
