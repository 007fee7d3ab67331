"""Virtual environments: with the TensorFlow of the tests, with one of another version, with none."""

from __future__ import annotations

import sys
import venv
from importlib.util import find_spec
from pathlib import Path


def make_environment(folder: Path, *, tensorflow: str | None = None) -> Path:
    """Make a virtual environment with a module `only_here`, and return its folder.

    Its TensorFlow is that of the tests if the version is `own`; another version is only said to be there.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "only_here.py").touch()
    if tensorflow == "own":
        spec = find_spec("tensorflow")
        assert spec is not None
        assert spec.origin is not None
        (site / "own.pth").write_text(f"{Path(spec.origin).parent.parent}\n")
    elif tensorflow is not None:
        (site / "tensorflow").mkdir()
        (site / "tensorflow" / "__init__.py").write_text("raise ImportError('another version')\n")
        described = site / f"tensorflow-{tensorflow}.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {tensorflow}\n")
    return folder
