"""Earlier releases of the package, whose clusters today's commands take over.

tfcluster-0.1.0.tar.xz is `git archive bb4da7c tfcluster pyproject.toml README.md LICENSE completions`.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

FIRST = "0.1.0"


def unpack(release: str, folder: Path) -> Path:
    """Unpack the sources of a release into a folder, and return the folder for PYTHONPATH."""
    with tarfile.open(Path(__file__).parent / f"tfcluster-{release}.tar.xz") as archive:
        archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
    return folder
