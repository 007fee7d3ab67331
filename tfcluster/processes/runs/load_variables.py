"""The environment variables that Python and libraries read while they are loaded, which a warm interpreter has done."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

#: What the warm interpreter has set, unless it has been given another value.
WARM_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2"}
# Read by the dynamic linker, libc and Python when a process starts, so that no script can set them for itself. The last
# ones name folders with settings that Keras and Matplotlib read; scripts often read these variables.
_AT_START = r"(?:PYTHON|LD_|MALLOC_|GLIBC_|LC_|LANG)[A-Z0-9_]*|HOME|XDG_CONFIG_HOME"
# Read when TensorFlow, and what it imports, is imported: as traced with TensorFlow 2.21, and other names of the same
# libraries, because each release and build reads others.
_LIBRARIES = (
    "ABSL_ CUDA_ DNNL_ GCS_ GFORTRAN_ GOMP_ GOTO_ GRPC_ HDF5_ KERAS_ KMP_ LLVM_ MATPLOTLIB MKL_ MPL NCCL_ NPY_ NUMPY_ "
    "NVIDIA_ OMP_ ONEDNN_ OPENBLAS_ OPENSSL_ PILLOW_ PROTOCOL_BUFFERS_ TF_ TF2_ WRAPT_ XLA_"
)
_AT_IMPORT = rf"(?:{'|'.join(_LIBRARIES.split())})[A-Z0-9_]+"
# Those of them that are read later. Libraries such as scikit-learn set the KMP ones for an OpenMP that they load.
_LATE = "(?!(?:TF_CONFIG|TF_USE_LEGACY_KERAS|KERAS_DISTRIBUTION_[A-Z_]*|KMP_DUPLICATE_LIB_OK|KMP_INIT_AT_FORK)$)"
_IMPORT_NAME, _NAME = re.compile(_LATE + _AT_IMPORT), re.compile(rf"{_LATE}(?:{_AT_START}|{_AT_IMPORT})")
# In Python: a string, or a keyword argument, as in `os.environ.update(NAME="value")`.
_NAMED = re.compile(rf"""(["'])({_AT_IMPORT})\1|[(,]\s*({_AT_IMPORT})\s*=(?!=)""".encode())
# Packages that set variables for themselves, when they are to be read.
_OWNERS = {"tensorflow", "keras", "tf_keras"}
_kept: dict[str, str] = {}


def keep_environment() -> None:
    """Note the environment with which this interpreter is about to import libraries, which change some variables."""
    _kept.update(os.environ)


def kept_environment() -> Mapping[str, str]:
    """Return the environment that was noted, without what imports have set."""
    return _kept


def differ(environment: Mapping[str, str]) -> bool:
    """Return whether an environment has other values for Python and libraries than the one that was noted."""
    new = {**WARM_ENVIRONMENT, **environment}
    return any(_NAME.fullmatch(name) and new.get(name) != _kept.get(name) for name in {*new, *_kept})


def are_named(source: bytes) -> bool:
    """Return whether a script names a variable that libraries read, which it may set before it imports them."""
    return any(_IMPORT_NAME.fullmatch((a or b).decode()) for _, a, b in _NAMED.findall(source))


def watch(report: Callable[[str], None]) -> None:
    """Have a function called with the name of each variable that a script changes although libraries are imported.

    It is called once for a variable. An audit hook would see the same, but it makes `id()` eight times as slow.
    """
    reported = set()

    def watched(change: Callable[..., None]) -> Callable[..., None]:
        def change_variable(*arguments: Any) -> None:
            change(*arguments)
            name, *value = map(os.fsdecode, arguments)
            is_late = _IMPORT_NAME.fullmatch(name) and _kept.get(name) != (value[0] if value else None)
            if is_late and name not in reported and _caller() not in _OWNERS:
                reported.add(name)
                report(name)

        return change_variable

    os.putenv, os.unsetenv = watched(os.putenv), watched(os.unsetenv)  # which os.environ calls


def _caller() -> str:
    """Return the package of the code that changes os.environ."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0]
