"""Puts the man pages, which `make wheel` writes before, into a wheel; an editable installation has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGES = "build/man"


class ManPages(BuildHookInterface[Any]):
    """A hook of hatchling: its own table of files for `share` requires that they exist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder to the files that an installer copies to `share`, as `man` looks there."""
        if version == "standard" and (Path(self.root) / PAGES).is_dir():
            build_data["shared_data"][PAGES] = "share/man/man1"
