"""The options of `tfcluster run expfit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tfcluster.cli.options import FiniteFloat, OutputFilePath, WholeNumber
from tfcluster.programs.api import SharedOptions, Submission

_MODES = ("single", "data-parallel", "model-parallel")


@click.command(
    epilog="Example: tfcluster run expfit --compare --plot convergence.png",
)
@click.option("--mode", type=click.Choice(_MODES), help="How the work is divided.  [default: single]")
@click.option("--compare", is_flag=True, help="Train in each mode in turn.")
@click.option("--plot", type=OutputFilePath((".png", ".svg", ".pdf")), help="Draw the losses in this file.")
@click.option("--steps", type=WholeNumber(1, 10**8), default="1000", show_default=True, help="Batches to learn from.")
@click.option(
    "--lr", type=FiniteFloat(0, min_open=True), default=0.05, show_default=True, metavar="RATE", help="Learning rate."
)
@click.option("--batch", type=WholeNumber(1, 10**5), default="64", show_default=True, help="Examples in a batch.")
def command(
    shared: SharedOptions,
    mode: str | None,
    compare: bool,
    plot: Path | None,
    steps: int,
    lr: float,
    batch: int,
) -> Submission:
    """Teach a network of 16 neurons y = e^x for x from -1 to 1, by gradient descent.

    single trains on one device. data-parallel gives each device its part of every batch; the weights are on the ps,
    otherwise the chief or master, otherwise the first device, which averages the gradients too. model-parallel has a
    layer on one task and a layer on another. The same seed gives the same curve in every mode; dividing so small a
    network only costs time.

    --plot writes PNG, SVG or PDF; it requires matplotlib: pip install matplotlib.
    """
    if compare and mode:
        raise click.UsageError("--compare trains in every mode; leave out --mode.")
    if plot is not None and shared.detach:
        raise click.UsageError("--plot cannot be combined with --detach: this command draws the run's losses.")
    if plot is not None:
        from tfcluster.ui.plot import refuse_without_matplotlib

        refuse_without_matplotlib()

    def draw_plot(result: dict[str, Any]) -> None:
        if plot is not None:
            from tfcluster.ui.plot import draw_convergence

            draw_convergence(plot, result["result"])

    modes = _MODES if compare else (mode or _MODES[0],)
    parameters = {"modes": modes, "steps": steps, "rate": lr, "batch": batch, "seed": shared.seed_or_random()}
    return Submission(parameters, on_success=draw_plot)
