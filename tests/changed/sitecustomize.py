"""Override settings and inject faults for a test, in every process that inherits these variables as JSON.

TEST_SETTINGS has values for tfcluster.settings by name; see `Sandbox.with_settings`. TEST_CHANGES has source text by
module, for faults that no setting can cause. Both take effect when a module is imported: a command that does without
the module still does. TEST_HIDDEN_MODULES has the names of modules that look as if they were not installed. For
TEST_TRACE see call_trace.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SETTINGS: dict[str, Any] = json.loads(os.environ.get("TEST_SETTINGS", "{}"))
CHANGES: dict[str, str] = json.loads(os.environ.get("TEST_CHANGES", "{}"))


def change(module: ModuleType) -> None:
    """Override settings in tfcluster.settings, and execute the source text for any other module."""
    if module.__name__ == "tfcluster.settings":
        for name, value in SETTINGS.items():
            getattr(module, name)  # raises if there is no such setting
            setattr(module, name, value)
    exec(CHANGES.get(module.__name__, ""), vars(module))


class ChangingFinder:
    """Finds the modules that are to be changed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        is_changed = name in CHANGES or (name == "tfcluster.settings" and SETTINGS)
        spec = PathFinder.find_spec(name, path) if is_changed else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


for hidden in os.environ.get("TEST_HIDDEN_MODULES", "").split():
    sys.modules[hidden] = None  # type: ignore[assignment]  # which is how the import system is told that there is none
if "TEST_TRACE" in os.environ:
    from tests.changed.call_trace import start

    start(json.loads(os.environ["TEST_TRACE"]))
if SETTINGS or CHANGES:
    sys.meta_path.insert(0, ChangingFinder)
