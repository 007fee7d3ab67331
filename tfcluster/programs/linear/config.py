"""A training as it was asked for: what every part of it needs to know and none changes."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.programs.context import Context
from tfcluster.programs.linear.dataset import Dataset
from tfcluster.programs.linear.roles import Roles

#: Optimizers, each with the learning rate that suits points in [-1, 1].
LEARNING_RATES = {"adagrad": 0.8, "sgd": 0.1, "momentum": 0.05, "adam": 0.1}


@dataclass(frozen=True)
class TrainingConfig:
    """A training.

    Attributes:
        context: The run.
        roles: Who does what.
        points: The data.
        optimizer: A name of `LEARNING_RATES`.
        rate: Its learning rate.
        batch: Examples a step, at most as many as there are.
        seed: From which the order of the examples follows; below 2^63.
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
        """The devices that hold the variables."""
        return self.roles.servers
