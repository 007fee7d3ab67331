"""Decide whether a script needs a fresh interpreter instead of the warm one that it was forked from, and start it.

A warm interpreter has read the environment variables that Python and libraries read while they are loaded, and has
imported TensorFlow and what TensorFlow imports.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from tfcluster import boot
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.protocol.serialization import to_json

#: What the warm interpreter has set, unless it has been given another value.
WARM_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2"}
_LOADED = (
    "(?:PYTHON|TF_|XLA_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|GOTO_|DNNL_|ONEDNN_|NPY_|KERAS_|MPL|PROTOCOL_BUFFERS_|LD_|CUDA_|"
    "NVIDIA_|GRPC_|MALLOC_|GLIBC_|LC_|LANG)[A-Z0-9_]*"
)
_NAME = re.compile(_LOADED)
_QUOTED_NAME = re.compile(rf"""(["'])({_LOADED})\1""".encode())
# Variables that are read when they are needed.
_LAZY = {"TF_CONFIG", "TF_USE_LEGACY_KERAS"}


def is_needed(environment: Mapping[str, str], plan: RunPlan) -> bool:
    """Return whether a script could tell this interpreter, which was forked from a warm one, from a fresh one.

    That is so if a variable that is read early differs or is named in the script, which may set it before it imports
    TensorFlow; and if a module beside the script has the name of one that is imported already. The user may also ask
    for a fresh one.
    """
    if plan.options.parameters.get("cold") or _early({**WARM_ENVIRONMENT, **environment}) != _early(os.environ):
        return True
    module = plan.options.parameters.get("module")
    if module is None:
        files = [plan.upload_path or Path(plan.options.parameters["path"])]
        folder = Path(os.path.realpath(files[0])).parent
    elif module in sys.modules or f"{module}.__main__" in sys.modules:
        return True
    else:
        folder = Path(plan.options.parameters["cwd"])
        files = _files_of_module(module, folder)
    try:
        named = {name.decode() for file in files for _, name in _QUOTED_NAME.findall(file.read_bytes())}
        return bool(named - _LAZY) or _is_hidden(folder)
    except OSError:  # the script will fail
        return False


def _files_of_module(module: str, folder: Path) -> list[Path]:
    """Return the files that `python -m MODULE` executes in a folder: those of its packages, and its own.

    They are found without executing any, as importing the module's package would. What is not found is left out.
    """
    files, path = [], [str(folder), *sys.path]
    for name in [*module.split("."), "__main__"]:
        if (spec := PathFinder.find_spec(name, path)) is None:
            break
        if spec.origin is not None:
            files.append(Path(spec.origin))
        if spec.submodule_search_locations is None:
            break
        path = list(spec.submodule_search_locations)
    return files


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read when Python and libraries are loaded."""
    return {name: value for name, value in environment.items() if _NAME.fullmatch(name) and name not in _LAZY}


def _is_hidden(folder: Path) -> bool:
    """Return whether an imported module has the name of another one in the script's folder, which it would hide."""
    imported = {name.partition(".")[0] for name in sys.modules}
    with os.scandir(folder) as entries:
        for entry in entries:
            name, _, ending = entry.name.partition(".")
            is_module = ending.endswith(("py", "so")) or os.path.exists(f"{entry.path}/__init__.py")
            if name in imported and name != "__main__" and is_module:
                return True
    return False


def replace_process(plan: RunPlan, environment: Mapping[str, str], link: socket.socket) -> NoReturn:
    """Replace this process by a fresh interpreter that runs the script."""
    run = os.memfd_create("run")
    with open(run, "wb", closefd=False) as file:
        file.write(json.dumps(to_json(plan)).encode())
    os.lseek(run, 0, os.SEEK_SET)
    for fd in (run, link.fileno()):
        os.set_inheritable(fd, True)
    boot.exec_function("tfcluster.processes.runs.run_script", "resume", [str(run), str(link.fileno())], environment)
