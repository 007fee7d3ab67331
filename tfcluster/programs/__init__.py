"""The bundled programs, each a module that a user could have written, and what they and scripts call.

The module of a program has three functions: `run(**parameters)` does the work, on the host of the head task;
`command()` returns a click command with the options, whose values are these parameters; `summary(result, seconds)`
returns the lines that a terminal shows of the result. They import TensorFlow, NumPy, click and rich by themselves:
the command line uses the last two without TensorFlow, and a host with TensorFlow alone uses the first one.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def load(name: str) -> ModuleType:
    """Import the module of a bundled program."""
    return importlib.import_module(f"{__name__}.{name}")
