"""Override settings and inject faults for a test, in every process that inherits these variables as JSON.

TEST_SETTINGS has values for tfcluster.settings by name; see `Sandbox.with_settings`. TEST_CHANGES has source text by
module, for faults that no setting can cause. Both take effect when a module is imported: a command that does without
the module still does. TEST_HIDDEN_MODULES has the names of modules that look as if they were not installed.

Every Python of the tests imports this, so it imports little itself: importlib.abc would import tempfile and random.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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
        if not is_changed:
            return None
        others = (finder.find_spec(name, path) for finder in sys.meta_path if finder is not ChangingFinder)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader = ChangingLoader(spec.loader)  # type: ignore[assignment]  # it has all that the other one has
        return spec


class ChangingLoader:
    """Loads a module as another loader does, and changes it.

    Args:
        loader: The other loader, which several modules may share.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


for hidden in os.environ.get("TEST_HIDDEN_MODULES", "").split():
    sys.modules[hidden] = None  # type: ignore[assignment]  # which is how the import system is told that there is none
if SETTINGS or CHANGES:
    sys.meta_path.insert(0, ChangingFinder)
