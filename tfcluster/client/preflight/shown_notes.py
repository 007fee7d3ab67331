"""Remember which notes were shown for a cluster, so that each is shown once a day."""

from __future__ import annotations

import time
from contextlib import suppress

from tfcluster import settings
from tfcluster.os.atomic_file import write_atomically
from tfcluster.paths import make_private_folder, state_home


def is_new_note(cluster: str, text: str) -> bool:
    """Return whether a note, if there is one, was not shown for a cluster within a day; remember that it is now.

    A state home that cannot be read or written only makes the note appear more often.
    """
    if not text:
        return False
    folder = state_home() / ".notes"
    with suppress(OSError):
        for path in folder.iterdir():
            if abs(time.time() - path.stat().st_mtime) > settings.NOTE_REPEAT_SECONDS:
                path.unlink()
    with suppress(OSError, ValueError):
        if (folder / cluster).read_text() == text:
            return False
    with suppress(OSError):
        make_private_folder(folder)
        write_atomically(folder / cluster, text.encode())
    return True
