"""Record each function of tfcluster that a process enters, for stories.py; Python imports this file when it starts.

ENTERED has JSON: `root`, the folder of the package; `file`, to which a line is appended when a process enters a
function for the first time in a story; `story`, a file of 8 bytes that has the number of the story, 0 for none.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any


class Recorder:
    """Records functions; `on_event` is a profile function, see sys.setprofile."""

    def __init__(self, root: str, file: str, story: str) -> None:
        self._root = f"{root}/"
        self._file = file
        with open(story, "rb") as number:
            self._story = mmap.mmap(number.fileno(), 8, prot=mmap.PROT_READ)
        self._seen: set[tuple[bytes, CodeType]] = set()

    def on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record the function that is called, or the generator or coroutine that continues."""
        if event != "call":
            return
        code = frame.f_code
        story = self._story[:]
        if not any(story) or (story, code) in self._seen or not code.co_filename.startswith(self._root):
            return
        self._seen.add((story, code))
        # Not a module or class body, and no lambda or comprehension, which a reader meets where they stand.
        if code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<"):
            self._record(story, code)

    def _record(self, story: bytes, code: CodeType) -> None:
        path = code.co_filename[len(self._root) :]
        entry = [int.from_bytes(story, "little"), path, code.co_firstlineno, code.co_name]
        # The file is opened for each line: a process that is forked closes the descriptors that it inherits.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
        os.close(descriptor)


if "ENTERED" in os.environ:
    recorder = Recorder(**json.loads(os.environ["ENTERED"]))
    threading.setprofile(recorder.on_event)
    sys.setprofile(recorder.on_event)
