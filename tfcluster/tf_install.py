"""What this process's Python has installed, found without importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from tfcluster.errors import ClusterError

#: What to type where TensorFlow is missing.
INSTALL_TENSORFLOW = "Install it there with `pip install tensorflow`."
_LIBRARY = "libtensorflow_cc.so.2"


def find_tensorflow_library() -> Path:
    """TensorFlow's library with its C API.

    Raises:
        ClusterError: This interpreter has no TensorFlow, or one without the library.
    """
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ClusterError("TensorFlow is not installed for the agent's Python", hint=INSTALL_TENSORFLOW)
    library = Path(spec.origin).parent / _LIBRARY
    if not library.exists():
        raise ClusterError(f"{library} is missing: tfcluster needs TensorFlow 2.14 or newer", hint=INSTALL_TENSORFLOW)
    return library


def tensorflow_version() -> str | None:
    """The version of the installed TensorFlow, under whatever name it was published; None where none says it."""
    try:
        return importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:  # as tensorflow-cpu, tf-nightly or one that a vendor built
        names = importlib.metadata.packages_distributions().get("tensorflow", [])
    return importlib.metadata.version(names[0]) if names else None
