"""What tells that a training has left the numbers: results, checkpoints and events hold finite ones only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tfcluster.errors import ClusterError


def is_finite(values: Mapping[str, Any]) -> bool:
    """Whether every value is a finite number."""
    return all(math.isfinite(value) for value in values.values())


def refuse_divergence(step: int, values: Mapping[str, Any]) -> None:
    """Return when all is well.

    Args:
        step: How many steps were done.
        values: w and b after them, and what else was found then.

    Raises:
        ClusterError: A value is not a finite number.
    """
    if not is_finite(values):
        raise ClusterError(
            f"the training diverged: after step {step:,} w is {values['w']:g} and b is {values['b']:g}",
            hint="Lower the learning rate with --lr, choose --optimizer adagrad, or scale the data.",
        )
