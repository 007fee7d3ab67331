"""Draw loss curves with a logarithmic axis in a file, with matplotlib."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any

from tfcluster.errors import usage_error
from tfcluster.ui.console import error_console

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
