"""Configuration of a training: immutable settings that all of its parts share, and the check for divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.programs.api import Context
from tfcluster.programs.linear.dataset import Dataset
from tfcluster.programs.linear.roles import Roles

#: Default learning rate of each optimizer, suited to points in [-1, 1].
LEARNING_RATES = {"adagrad": 0.8, "sgd": 0.1, "momentum": 0.05, "adam": 0.1}


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training.

    Attributes:
        context: The run.
        roles: The devices, by their role in the training.
        points: The data.
        optimizer: A key of `LEARNING_RATES`.
        rate: The learning rate.
        batch: Examples per step, at most the number of points.
        seed: Seed of the order of the examples, below 2^63.
    """

    context: Context
    roles: Roles
    points: Dataset
    optimizer: str
    rate: float
    batch: int
    seed: int

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the devices that hold the variables."""
        return self.roles.servers


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
