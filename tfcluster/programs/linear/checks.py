"""Detect divergence (NaN or infinity), so that results, checkpoints and events contain finite numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tfcluster.errors import ClusterError


def is_finite(values: Mapping[str, Any]) -> bool:
    """Return whether every value is a finite number."""
    return all(math.isfinite(value) for value in values.values())


def refuse_divergence(step: int, values: Mapping[str, Any]) -> None:
    """Raise an error if the training has diverged.

    Args:
        step: Number of steps done.
        values: w and b after these steps, and any other values computed then.

    Raises:
        ClusterError: A value is not a finite number.
    """
    if not is_finite(values):
        raise ClusterError(
            f"the training diverged: after step {step:,} w is {values['w']:g} and b is {values['b']:g}",
            hint="Lower the learning rate with --lr, choose --optimizer adagrad, or scale the data.",
        )
