"""Measure two ways to do the same thing in turn, in one run, as a ratio that holds on a noisy machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable


def compare(
    title: str, unit: str, tfcluster: Callable[[], float], baseline: Callable[[], float], rounds: int, target: float
) -> bool:
    """Measure both ways in turn and print every figure, the ratios, and whether the target is reached.

    Args:
        title: What is measured.
        unit: The unit of the figures.
        tfcluster: Does it with tfcluster and returns the figure.
        baseline: Does it the usual way and returns the figure.
        rounds: The number of measurements of each.
        target: The ratio baseline/tfcluster to reach.

    Returns:
        Whether the target is reached.
    """
    return report(title, unit, [(tfcluster(), baseline()) for _ in range(rounds)], target)


def report(title: str, unit: str, pairs: list[tuple[float, float]], target: float) -> bool:
    """Print pairs of figures (tfcluster, baseline) that were measured side by side.

    Returns:
        Whether the target is reached.
    """
    ratios = [baseline / tfcluster for tfcluster, baseline in pairs]
    ratio = statistics.median(ratios)
    print(f"{title}")
    for name, figures in (("tfcluster", [pair[0] for pair in pairs]), ("baseline", [pair[1] for pair in pairs])):
        listed = "  ".join(f"{figure:.3f}" for figure in figures)
        print(f"  {name}: median {statistics.median(figures):.3f} {unit}   ({listed})")
    is_reached = ratio >= target
    print(
        f"  ratio: median {ratio:.3g}, lowest {min(ratios):.3g}; target {target:.3g}: {verdict(is_reached)}\n",
        flush=True,
    )
    return is_reached


def verdict(is_reached: bool) -> str:
    """Return the text by which a benchmark says whether a target is reached."""
    return "reached" if is_reached else "NOT REACHED"
