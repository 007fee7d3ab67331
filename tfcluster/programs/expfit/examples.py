"""Training batches and initial weights, which depend on the seed alone and not on how the work is partitioned."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Number of neurons in the hidden layer.
HIDDEN = 16
#: Bounds of the x for which the network learns e^x.
LOW, HIGH = -1.0, 1.0


class Examples:
    """A stream of batches.

    Args:
        seed: Seed of the stream.
        batch: Number of examples in a batch.
    """

    def __init__(self, seed: int, batch: int) -> None:
        self._generator = np.random.default_rng([seed, 1])
        self._batch = batch

    def next(self, steps: int) -> Any:
        """Return the x of the next batches. The stream does not depend on how many batches each call takes.

        Args:
            steps: Number of batches.

        Returns:
            An array of shape [steps, batch].
        """
        return self._generator.uniform(LOW, HIGH, (steps, self._batch))


def initial_layers(seed: int) -> list[Any]:
    """Return the initial weights of both layers.

    Args:
        seed: Seed of the weights.

    Returns:
        Arrays of the shapes [1 + 1, HIDDEN] and [HIDDEN + 1, 1]; the last row of each is the bias.
    """
    generator = np.random.default_rng([seed, 0])
    hidden = generator.normal(size=(2, HIDDEN))
    output = generator.normal(size=(HIDDEN + 1, 1)) / np.sqrt(HIDDEN)
    return [hidden, output]


def largest_error(layers: list[Any]) -> float:
    """Return the largest absolute error of the network with respect to e^x, between LOW and HIGH."""
    x = np.linspace(LOW, HIGH, 1001)[:, np.newaxis]
    hidden, output = layers
    found = np.tanh(x @ hidden[:-1] + hidden[-1]) @ output[:-1] + output[-1]
    return float(np.abs(found - np.exp(x)).max())
