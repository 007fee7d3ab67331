"""A YAML file, or its text -> the validated spec."""

from __future__ import annotations

from pathlib import Path

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.schema import Spec
from tfcluster.spec.validate import build_spec
from tfcluster.spec.yaml_source import INIT_HINT, MAX_BYTES, read_source


def load_spec(path: Path) -> Spec:
    """The spec of a file; its cluster is named after the file unless it says otherwise.

    Raises:
        ClusterError: The file cannot be read, or something is wrong in it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ClusterError(f"{path}: {reason}", hint=INIT_HINT, exit_code=ExitCode.USAGE) from None
    return parse_spec(text, str(path), path.stem)


def parse_spec(text: str | bytes, file: str, default_name: str) -> Spec:
    """The spec of a YAML text.

    Args:
        text: The text; bytes are taken for UTF-8.
        file: The file to name in problems.
        default_name: The cluster's name when the text has none.

    Raises:
        ClusterError: Something is wrong in it; the message has a line for each problem.
    """
    return build_spec(read_source(text, file), default_name)
