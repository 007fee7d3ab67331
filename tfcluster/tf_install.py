"""Find TensorFlow, without importing it, and the packages that a host's Python must have besides it."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from tfcluster.errors import ClusterError

#: What is imported on a host besides TensorFlow, by the module; the names are those for pip. TensorFlow 2.14 to 2.21
#: requires all of it, so that nobody has to name it.
PACKAGES_OF_TENSORFLOW = {"grpc": "grpcio", "google.protobuf": "protobuf", "numpy": "numpy"}
#: The hint for a host where TensorFlow is not installed.
INSTALL_TENSORFLOW = "Install it there with `pip install tensorflow`."
#: The oldest Python that can execute the code of tfcluster.
OLDEST_PYTHON = (3, 11)
_LIBRARY = "libtensorflow_cc.so.2"


def missing_packages() -> dict[str, str]:
    """Return a message for each package that a host needs and this interpreter does not have, by the name for pip."""
    try:
        find_tensorflow_library()
    except ClusterError as problem:
        return {"tensorflow": problem.message}
    return {
        package: f"{package} is not installed for {sys.executable}"
        for module, package in PACKAGES_OF_TENSORFLOW.items()
        if not _is_installed(module)
    }


def is_managed_by_system() -> bool:
    """Return whether pip installs nothing for this interpreter: its packages are those of the system (PEP 668)."""
    marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return sys.prefix == sys.base_prefix and marker.exists()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that has the module
        return False


def find_tensorflow_library() -> Path:
    """Return the path of TensorFlow's shared library, which exports its C API."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ClusterError("TensorFlow is not installed for the agent's Python", hint=INSTALL_TENSORFLOW)
    library = Path(spec.origin).parent / _LIBRARY
    if not library.exists():
        raise ClusterError(
            f"{library} is missing: tfcluster requires TensorFlow 2.14 or newer", hint=INSTALL_TENSORFLOW
        )
    return library


def tensorflow_version(path: Sequence[str] | None = None) -> str | None:
    """Return the version of the installed TensorFlow, whatever the name of its distribution; None if there is none.

    `path` has the folders from which another Python imports; None for this one.
    """
    from importlib import metadata  # a quarter of what the start of a session would take

    folders = sys.path if path is None else list(path)
    if named := next(iter(metadata.distributions(name="tensorflow", path=folders)), None):
        return named.version
    if PathFinder.find_spec("tensorflow", folders) is None:  # to read the lists of all files takes a while
        return None
    for each in metadata.distributions(path=folders):  # for example tensorflow-cpu, tf-nightly or a vendor's build
        names = (each.read_text("top_level.txt") or "").split()
        if "tensorflow" in names or any(file.parts[:2] == ("tensorflow", "__init__.py") for file in each.files or ()):
            return each.version
    return None
