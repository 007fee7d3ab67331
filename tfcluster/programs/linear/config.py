"""Configuration of a training: immutable settings that all of its parts share."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.programs.context import Context
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
