"""Draw loss curves with a logarithmic axis: on the terminal in braille or ASCII, or to a file with matplotlib."""

from __future__ import annotations

import importlib.util
import math
import operator
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from tfcluster.errors import usage_error
from tfcluster.ui.console import Text, error_console

Curve = Sequence[Sequence[float]]
# By row and column of a character: the curves that pass through it, and the bits of the braille dots that each sets.
_Cells = dict[tuple[int, int], dict[str, int]]

_ROWS = 10
# The width of an axis label; that of 1.2e-123.
_LABEL = 8
# The mark of each curve without braille, and its colour.
_GLYPHS = (("*", "green"), ("+", "yellow"), ("o", "cyan"))
# The bits of a braille cell's dots, by their row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800


def draw_chart(curves: Mapping[str, Curve], *, width: int, braille: bool) -> list[Text]:
    """Draw curves as lines of text; return none if there are fewer than two different x.

    The curves are points (x, y) with rising x; those with y <= 0 are left out, as the axis is logarithmic. `width` is
    in characters. `braille` has eight dots to a character, instead of `*`, `+` and `o`. Overlapping curves take turns
    in the colours of the characters, like dashes, so that each is visible.
    """
    points = {name: [(x, math.log10(y)) for x, y in curve if y > 0] for name, curve in curves.items()}
    all_points = [point for each in points.values() for point in each]
    if len({x for x, _ in all_points}) < 2:
        return []
    area = _PlotArea(
        columns=max(10, width - _LABEL - 2),
        left=min(x for x, _ in all_points),
        right=max(x for x, _ in all_points),
        low=min(y for _, y in all_points),
        high=max(y for _, y in all_points),
    )
    cells = _draw_cells(area, points, *((2, 4) if braille else (1, 1)))
    glyphs = dict(zip(points, cycle(_GLYPHS), strict=False))
    lines = [_draw_row(area, row, cells, glyphs, braille) for row in range(_ROWS)]
    lines += _draw_axis(area, braille)
    if len(points) > 1:
        legend = [(f"{'━━' if braille else mark} {name}   ", style) for name, (mark, style) in glyphs.items()]
        lines.append(Text.assemble(" " * (_LABEL + 2), *legend))
    return lines


class _PlotArea:
    """The area of the chart, which maps points to dots."""

    def __init__(self, columns: int, left: float, right: float, low: float, high: float) -> None:
        self.columns = columns
        self.left, self.right = left, right
        # A flat curve gets an axis of one decade.
        self.low, self.high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def dots(self, points: Sequence[tuple[float, float]], across: int, down: int) -> list[tuple[int, int]]:
        """Return the dots, as (column, row), of lines between points (x, log10 y), `across` by `down` to a cell."""
        wide = (self.columns * across - 1) / (self.right - self.left)
        tall = (_ROWS * down - 1) / (self.high - self.low)
        ends = [(round((x - self.left) * wide), round((self.high - y) * tall)) for x, y in points]
        dots = ends[:1]
        for (x0, y0), (x1, y1) in pairwise(ends):
            pieces = max(abs(x1 - x0), abs(y1 - y0))
            dots += [
                (x0 + round((x1 - x0) * part / pieces), y0 + round((y1 - y0) * part / pieces))
                for part in range(1, pieces + 1)
            ]
        return dots


def _draw_cells(area: _PlotArea, points: Mapping[str, Sequence[tuple[float, float]]], across: int, down: int) -> _Cells:
    cells: _Cells = {}
    for name, each in points.items():
        for x, y in area.dots(each, across, down):
            cell = cells.setdefault((y // down, x // across), {})
            cell[name] = cell.get(name, 0) | _DOTS[y % 4][x % 2]
    return cells


def _draw_axis(area: _PlotArea, braille: bool) -> list[Text]:
    corner, bar = ("└", "─") if braille else ("+", "-")
    left, right = f"{area.left:,.0f}", f"{area.right:,.0f}"
    return [
        Text(f"{'':>{_LABEL}} {corner}{bar * area.columns}"),
        Text(f"{'':>{_LABEL}}  {left}{right:>{area.columns - len(left)}}"),
    ]


def _draw_row(area: _PlotArea, row: int, cells: _Cells, glyphs: Mapping[str, tuple[str, str]], braille: bool) -> Text:
    value = 10 ** (area.high + (area.low - area.high) * row / (_ROWS - 1))
    # Every third row is labelled with its value.
    label = f"{value:.2g}" if row % 3 == 0 else ""
    line = Text(f"{label:>{_LABEL}} {'│' if braille else '|'}")
    for column in range(area.columns):
        curves = cells.get((row, column))
        if not curves:
            line.append(" ")
            continue
        mark, style = glyphs[list(curves)[column // 2 % len(curves)]]
        dots = reduce(operator.or_, curves.values())
        line.append(chr(_BRAILLE + dots) if braille else mark, style)
    return line


# The curves of one seed coincide, so each is thinner than the one below it and has its own dash pattern.
_LINES = ((5.0, "-", "0.8"), (2.5, "--", "tab:orange"), (1.5, ":", "tab:blue"))


def refuse_without_matplotlib() -> None:
    """Raise a usage error before a run if Matplotlib, which draws its plot, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise usage_error(
            "--plot requires matplotlib, which is not installed",
            f"Type `{shlex.quote(sys.executable)} -m pip install matplotlib`.",
        )


def draw_convergence(path: Path, result: dict[str, Any]) -> None:
    """Plot the losses of expfit in a file, which is replaced, in the format of its suffix; OSError if that fails."""
    from matplotlib.figure import Figure  # not pyplot, which looks for a display

    modes = result.get("modes", [result])
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for each, (width, style, colour) in zip(modes, _LINES, strict=False):
        steps, losses = zip(*each["curve"], strict=True)
        colour = colour if len(modes) > 1 else "tab:blue"
        label = f"{each['mode']}: {each['loss']:.3g} in {each['seconds']:.2g} s"
        axes.plot(steps, losses, style, color=colour, linewidth=width if len(modes) > 1 else 1.5, label=label)
    axes.set(yscale="log", xlabel="step", ylabel="mean squared error", title="Learning e^x from -1 to 1")
    axes.grid(alpha=0.3)
    axes.legend(title=f"seed {result['seed']}")
    figure.savefig(path, dpi=150)
    error_console().print(f"the plot is in {path}")
