"""Exempt the modules that the fork server has imported from the shutdown of a script's interpreter.

A shutdown clears every module in `sys.modules`. The 3,000 modules of TensorFlow are memory that a forked script shares
with the fork server; to clear them copies 28,000 pages, which took half of the time of a script that does nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType

#: Modules whose globals may own what a script has not closed: a connection to servers that is to be closed,
#: a session, a summary writer that is to be flushed, a thread. They are cleared as in any interpreter.
_STATEFUL = {
    "__main__",
    "builtins",
    "sys",
    "threading",
    "keras.src.backend",  # of Keras 2, in which TensorFlow up to 2.15 has it
    "keras.src.backend.common.global_state",
    "tensorflow.python.eager.context",
    "tensorflow.python.framework.ops",
    "tensorflow.python.framework.stack",
    "tensorflow.python.keras.backend",
    "tensorflow.python.ops.summary_ops_v2",
}
# It keeps the modules alive: no other module refers to this dict, and a driver excludes it from garbage collection.
_kept: dict[str, ModuleType] = {}


def keep() -> None:
    """Note the modules that are imported now; for the fork server, before it forks a driver."""
    _kept.update((name, module) for name, module in sys.modules.items() if name not in _STATEFUL)


def exempt() -> None:
    """Exempt them; for a script, when all of its own code has run, except destructors and daemon threads."""
    for name, module in _kept.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
