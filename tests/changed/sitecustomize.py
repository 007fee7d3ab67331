"""Changes modules of ours for a test, in every process that inherits TEST_CHANGES: see `Sandbox.with_constants`.

A module is changed when it is imported: a command that does without it still does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

CHANGES: dict[str, str] = json.loads(os.environ.get("TEST_CHANGES", "{}"))


class Changing:
    """Finds the modules that are to be changed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in CHANGES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            exec(CHANGES[name], vars(module))

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if CHANGES:
    sys.meta_path.insert(0, Changing)
