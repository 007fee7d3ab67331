"""Record calls of functions, each with its callers, in every process that inherits TEST_TRACE; see tests/stories.py.

TEST_TRACE is JSON: `root`, the folder of the package, `file`, to which each call is appended as a line, and
`functions`, whose calls are recorded. A function is the path of its module in the package and its first line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

Function = tuple[str, int]


class Tracer:
    """Records calls; `on_event` is a profile function, see sys.setprofile.

    Args:
        file: The file to which calls are appended.
        root: The folder of the package.
        functions: The functions whose calls are recorded.
    """

    def __init__(self, file: str, root: str, functions: set[Function]) -> None:
        self._file = file
        self._root = f"{root}/"
        self._functions = functions
        self._known: dict[CodeType, Function | None] = {}  # None: it is not one of the package

    def on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record the call of a function, or that a generator or coroutine goes on."""
        if event == "call" and self._function(frame.f_code) in self._functions:
            self._record(frame)

    def _function(self, code: CodeType) -> Function | None:
        if code not in self._known:
            is_ours = code.co_filename.startswith(self._root) and not code.co_name.startswith("<")
            self._known[code] = (code.co_filename[len(self._root) :], code.co_firstlineno) if is_ours else None
        return self._known[code]

    def _record(self, frame: FrameType) -> None:
        calls = []
        caller: FrameType | None = frame
        while caller is not None:
            if (function := self._function(caller.f_code)) is not None:
                calls.append(function)
            caller = caller.f_back
        line = json.dumps({"time": time.monotonic(), "pid": os.getpid(), "calls": calls[::-1]}) + "\n"
        # One write to a file that is opened for it: processes are forked and close the descriptors that they inherit.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, line.encode())
        os.close(descriptor)


def start(parameters: dict[str, Any]) -> None:
    """Record the calls of this process, of its threads, and of the processes that it forks."""
    functions = {(path, line) for path, line in parameters["functions"]}
    tracer = Tracer(parameters["file"], parameters["root"], functions)
    threading.setprofile(tracer.on_event)
    sys.setprofile(tracer.on_event)
