"""Load the validated spec from a YAML file or its text."""

from __future__ import annotations

from pathlib import Path

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.schema import Spec
from tfcluster.spec.validate import build_spec
from tfcluster.spec.yaml_source import INIT_HINT, read_source


def load_spec(path: Path) -> Spec:
    """Load and validate the spec in a YAML file; the default name of its cluster is the file's name without extension.

    Args:
        path: The path of the file.

    Returns:
        The validated spec.

    Raises:
        ClusterError: The file cannot be read, or the spec is invalid.
    """
    try:
        with path.open("rb") as file:
            text = file.read(settings.SPEC_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ClusterError(f"{path}: {reason}", hint=INIT_HINT, exit_code=ExitCode.USAGE) from None
    return parse_spec(text, str(path), path.stem)


def parse_spec(text: str | bytes, file: str, default_name: str) -> Spec:
    """Parse and validate the spec in a YAML text.

    Args:
        text: The text; bytes are decoded as UTF-8.
        file: The file name for error messages.
        default_name: The cluster's name if the text does not set one.

    Returns:
        The validated spec.

    Raises:
        ClusterError: The spec is invalid; the message has one line for each problem.
    """
    return build_spec(read_source(text, file), default_name)
