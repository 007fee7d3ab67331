"""What is done with a path at which a file of ours is to be, and may be something else."""

from __future__ import annotations

import shutil
import stat
from contextlib import suppress
from pathlib import Path


def remove_unless_file(path: Path) -> None:
    """Remove what has taken the place of a file of ours and is none: to open a named pipe would wait for ever.

    Raises:
        OSError: It cannot be removed.
    """
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        elif not stat.S_ISREG(mode):
            path.unlink()
