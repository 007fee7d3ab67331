"""Two ways to do a thing, measured in turn in one run, as a ratio that holds on a noisy machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable


def compare(
    title: str, unit: str, ours: Callable[[], float], theirs: Callable[[], float], rounds: int, target: float
) -> bool:
    """Measure both ways in turn and print every figure, the ratios, and whether the target is reached.

    Args:
        title: What is measured.
        unit: The figures' unit.
        ours: Does it with tfcluster and returns the figure.
        theirs: Does it the other way and returns the figure.
        rounds: How often each is measured.
        target: The ratio theirs/ours to reach.

    Returns:
        Whether it is reached.
    """
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return report(title, unit, pairs, target)


def report(title: str, unit: str, pairs: list[tuple[float, float]], target: float) -> bool:
    """Print pairs of figures (ours, theirs) that were measured side by side; whether the target is reached."""
    ratios = [theirs / ours for ours, theirs in pairs]
    ratio = statistics.median(ratios)
    print(f"{title}")
    for name, figures in (("tfcluster", [ours for ours, _ in pairs]), ("other way", [other for _, other in pairs])):
        shown = "  ".join(f"{figure:.3f}" for figure in figures)
        print(f"  {name}: median {statistics.median(figures):.3f} {unit}   ({shown})")
    is_reached = ratio >= target
    print(
        f"  ratio: median {ratio:.1f}, lowest {min(ratios):.1f}; target {target:g}: {verdict(is_reached)}\n", flush=True
    )
    return is_reached


def verdict(is_reached: bool) -> str:
    """How a benchmark prints whether a target is reached."""
    return "reached" if is_reached else "NOT REACHED"
