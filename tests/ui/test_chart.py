"""Curves as characters, where the points of known curves stand, and the picture of expfit's losses."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.ui.chart import draw_chart, draw_convergence, refuse_without_matplotlib

HALVING = [[step, 2.0**-step] for step in range(101)]


def test_a_straight_line_on_a_logarithmic_axis() -> None:
    lines = [line.plain for line in draw_chart({"a": [[0, 1.0], [66, 1e-9]]}, width=77, braille=False)]
    assert len(lines) == 12
    assert [line[:10] for line in lines[:10:3]] == ["       1 |", "   0.001 |", "   1e-06 |", "   1e-09 |"]
    assert {line[:10] for number, line in enumerate(lines[:10]) if number % 3} == {"         |"}
    assert lines[0][10] == "*"
    assert lines[9][10 + 66] == "*"
    marks = [column for line in lines[:10] for column, mark in enumerate(line[10:]) if mark == "*"]
    assert marks == list(range(67)), "one mark in each column, and they fall all the way"
    assert lines[10] == "         +" + "-" * 67
    assert lines[11] == "          0" + " " * 64 + "66"


def test_braille_dots_and_a_flat_curve_in_the_middle() -> None:
    # The first cell's upper left dot, the last cell's lower right one.
    lines = [line.plain for line in draw_chart({"a": [[1, 1.0]], "b": [[9, 0.1]]}, width=40, braille=True)]
    assert lines[0][10] == chr(0x2801)
    assert lines[9][-1] == chr(0x2880)
    cells = "".join(line[10:] for line in lines[:10])
    assert sum(bin(ord(cell) - 0x2800).count("1") for cell in cells if cell != " ") == 2
    assert lines[10] == "         └" + "─" * 30
    lines = [line.plain for line in draw_chart({"a": [[1, 0.5], [9, 0.5]]}, width=30, braille=False)]
    assert [number for number, line in enumerate(lines[:10]) if "*" in line] == [4]
    assert lines[4][10:] == "*" * 20


def test_curves_that_meet_take_turns() -> None:
    lines = draw_chart({"one": HALVING, "two": HALVING, "three": HALVING}, width=76, braille=False)
    marks = "".join(line.plain[10:] for line in lines[:10]).replace(" ", "")
    assert {mark: marks.count(mark) > 15 for mark in "*+o"} == {"*": True, "+": True, "o": True}
    assert lines[-1].plain.split() == ["*", "one", "+", "two", "o", "three"]
    assert {str(span.style) for line in lines[:10] for span in line.spans} == {"green", "yellow", "cyan"}


@pytest.mark.parametrize("curve", [[], [[1, 0.5]], [[1, -1.0], [2, 0.0], [3, 1.0]]])
def test_nothing_that_can_be_drawn(curve: list[list[float]]) -> None:
    assert draw_chart({"a": curve}, width=76, braille=True) == []


POINTS = st.lists(st.tuples(st.integers(1, 10**8), st.floats(1e-300, 1e300)), min_size=1, max_size=30)


@settings(max_examples=40)
@given(st.lists(POINTS, min_size=1, max_size=4), st.integers(1, 120), st.booleans())
def test_no_line_is_wider_than_asked_for(curves: list[list[tuple[int, float]]], width: int, braille: bool) -> None:
    named = {str(number): sorted(curve) for number, curve in enumerate(curves)}
    lines = draw_chart(named, width=width, braille=braille)
    assert all(len(line.plain) <= max(width, 40) for line in lines)
    several = len({x for curve in curves for x, _ in curve}) > 1
    assert any(line.plain[10:].strip() for line in lines[:10]) is several


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
