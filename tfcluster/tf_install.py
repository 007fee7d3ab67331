"""Locate the TensorFlow installation of this process's Python, and its version, without importing TensorFlow."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from tfcluster.errors import ClusterError

#: The hint for a host where TensorFlow is not installed.
INSTALL_TENSORFLOW = "Install it there with `pip install tensorflow`."
_LIBRARY = "libtensorflow_cc.so.2"


def find_tensorflow_library() -> Path:
    """Return the path of TensorFlow's shared library, which exports its C API.

    Raises:
        ClusterError: This interpreter has no TensorFlow, or a TensorFlow without the library.
    """
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ClusterError("TensorFlow is not installed for the agent's Python", hint=INSTALL_TENSORFLOW)
    library = Path(spec.origin).parent / _LIBRARY
    if not library.exists():
        raise ClusterError(f"{library} is missing: tfcluster needs TensorFlow 2.14 or newer", hint=INSTALL_TENSORFLOW)
    return library


def tensorflow_version() -> str | None:
    """Return the version of the installed TensorFlow, whatever the name of its distribution.

    Returns:
        The version; None if no installed distribution provides TensorFlow.
    """
    try:
        return importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:  # for example tensorflow-cpu, tf-nightly or a vendor's build
        names = importlib.metadata.packages_distributions().get("tensorflow", [])
    return importlib.metadata.version(names[0]) if names else None
