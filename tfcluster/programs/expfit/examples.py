"""What the network learns from and begins with, from the seed alone: the same whatever devices share the work."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Neurons between input and output.
HIDDEN = 16
#: The network learns e^x for x from here to there.
LOW, HIGH = -1.0, 1.0


class Examples:
    """A stream of batches.

    Args:
        seed: Where the stream comes from.
        batch: Examples in a batch.
    """

    def __init__(self, seed: int, batch: int) -> None:
        self._generator = np.random.default_rng([seed, 1])
        self._batch = batch

    def next(self, steps: int) -> Any:
        """The x of the next batches, shape [steps, batch]; the stream does not depend on how it is cut."""
        return self._generator.uniform(LOW, HIGH, (steps, self._batch))


def initial_layers(seed: int) -> list[Any]:
    """The weights of both layers, shapes [1 + 1, HIDDEN] and [HIDDEN + 1, 1]; the last row of each is the bias."""
    generator = np.random.default_rng([seed, 0])
    hidden = generator.normal(size=(2, HIDDEN))
    output = generator.normal(size=(HIDDEN + 1, 1)) / np.sqrt(HIDDEN)
    return [hidden, output]


def largest_error(layers: list[Any]) -> float:
    """How far the network is from e^x where it is furthest, between LOW and HIGH."""
    x = np.linspace(LOW, HIGH, 1001)[:, np.newaxis]
    hidden, output = layers
    found = np.tanh(x @ hidden[:-1] + hidden[-1]) @ output[:-1] + output[-1]
    return float(np.abs(found - np.exp(x)).max())
