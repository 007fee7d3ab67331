"""TensorFlow, imported once before the tests that compute with it."""

import warnings

# Warnings are errors in these tests, but those of TensorFlow's own import (of numpy, in its older versions) are not
# ours, and one of them as an error leaves TensorFlow half imported.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow  # noqa: F401
