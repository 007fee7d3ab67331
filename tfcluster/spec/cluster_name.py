"""The name of a spec's cluster: the `name:` in the file, or else a name that is derived from the file's path."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.input_file import read_input
from tfcluster.paths import CLUSTER_NAME, DEFAULT_SPEC
from tfcluster.spec.yaml_source import INIT_HINT, read_source


def default_name(path: Path) -> str:
    """Return the name of a spec's cluster if the spec has no `name:`; empty if no valid character remains.

    It is the folder's name for a file called cluster.yaml, and the file's name without extension for any other file.
    As Docker Compose does, this drops the characters that a name cannot have.
    """
    absolute = Path(os.path.abspath(path))
    name = absolute.parent.name if path.name == DEFAULT_SPEC.name else path.stem
    match = CLUSTER_NAME.search(re.sub(r"[^A-Za-z0-9_.-]", "", name))
    return match.group() if match else ""


def read_spec(path: Path) -> bytes:
    """Read the file of a spec."""
    try:
        return read_input(path, settings.SPEC_MAX_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ClusterError(f"{path}: {reason}", hint=INIT_HINT, exit_code=ExitCode.USAGE) from None


def read_name(path: Path) -> tuple[str | None, bool]:
    """Read only the name of a spec's cluster, which takes a tenth of the time that `load_spec` takes.

    Return it, or None if it is not valid; and whether the spec has a `name:`.
    """
    value = read_source(read_spec(path), str(path)).value
    name = value.get("name", default_name(path))
    return name if isinstance(name, str) and CLUSTER_NAME.fullmatch(name) else None, "name" in value
