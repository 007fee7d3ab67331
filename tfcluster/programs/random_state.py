"""The state of random generators in a process that was forked from one that had imported TensorFlow."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys


def reseed() -> None:
    """Draw again what a fresh interpreter draws at random while it imports; else every run would have the same.

    Python seeds `random` in each fork by itself, and TensorFlow seeds its generators when a process first needs them.
    The seed of Python's string hashes is drawn before any import and cannot be drawn again.
    """
    multiprocessing.current_process().authkey = os.urandom(32)
    if "numpy.random" in sys.modules:
        import numpy

        numpy.random.seed()


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and TensorFlow, as a user's script uses them.

    Args:
        seed: Any integer; NumPy takes it modulo 2**32.
    """
    import numpy
    import tensorflow as tf

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    tf.random.set_seed(seed)
