"""Seed the random generators of a process that was forked from a fork server which has already imported TensorFlow."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys


def reseed() -> None:
    """Redraw the random state that a fresh interpreter draws during imports, so that forked runs do not share it.

    Python reseeds `random` in each fork by itself, and TensorFlow seeds its generators when a process first needs them.
    The seed of Python's string hashes is drawn before any import and cannot be changed.
    """
    multiprocessing.current_process().authkey = os.urandom(32)
    if "numpy.random" in sys.modules:
        import numpy

        numpy.random.seed()


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and TensorFlow, which a user's script may use.

    Args:
        seed: Any integer; NumPy is seeded with it modulo 2**32.
    """
    import numpy
    import tensorflow as tf

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    tf.random.set_seed(seed)
