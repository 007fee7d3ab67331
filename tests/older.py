"""An older version of the package, whose clusters today's commands take over: today's with a lower protocol."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.conftest import ROOT
from tfcluster.version import PROTOCOL

OLDER = "0.1.9"


def make_older(folder: Path) -> Path:
    """Copy what a wheel is built from into a folder, as an older version; return the folder for PYTHONPATH."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("tfcluster", "completions"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "tfcluster" / "version.py"
    text = re.sub(r'__version__ = ".*"', f'__version__ = "{OLDER}"', path.read_text())
    path.write_text(text.replace(f"PROTOCOL = {PROTOCOL}", f"PROTOCOL = {PROTOCOL - 1}"))
    return folder
