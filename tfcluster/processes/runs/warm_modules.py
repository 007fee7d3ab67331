"""What the fork server has imported besides the standard library: a script finds it imported when it first imports any.

The interpreter's shutdown destroys each module in `sys.modules`. For TensorFlow and all that it imports this takes most
of the time of a short run, as each page of memory that it writes to is copied first. A script that imports nothing of
it ends without that. If a script does import it, all is destroyed, since objects of the script may be in there, such as
a writer of summaries whose file is not complete before its end.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from copy import copy
from importlib.machinery import ModuleSpec
from types import ModuleType


class WarmModules:
    """Hides the modules from the script in this process, until it imports one: then all are there.

    It is a finder and a loader, see importlib.abc.MetaPathFinder and importlib.abc.Loader.
    """

    def __init__(self) -> None:
        kept = {*sys.stdlib_module_names, "tfcluster", "__main__"}
        self._modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] not in kept}

    def hide(self) -> None:
        """Remove the modules from `sys.modules`."""
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)
        # Otherwise, the shutdown destroys the modules with this object.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._modules))

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a hidden module, whose loader is this object."""
        if name not in self._modules:
            return None
        spec = copy(getattr(self._modules[name], "__spec__", None)) or ModuleSpec(name, None)
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a hidden module, and hide none any more."""
        if self in sys.meta_path:
            # First: another thread would import once more what it finds nowhere. The script may have put others there.
            for name, module in self._modules.items():
                sys.modules.setdefault(name, module)
            with suppress(ValueError):  # another thread has done the same
                sys.meta_path.remove(self)
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._modules))
        spec.loader_state = getattr(self._modules[spec.name], "__spec__", None)
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it was: it was executed when it was first imported."""
        assert module.__spec__ is not None, "importlib has set it"
        module.__spec__ = module.__spec__.loader_state
