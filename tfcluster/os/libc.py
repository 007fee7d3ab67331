"""Functions of the C library that Python's standard library lacks."""

from __future__ import annotations

import ctypes
import os
from functools import cache


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: object) -> int:
    """Call a function that reports an error by a negative result and errno; return its result, or raise an OSError."""
    result = int(getattr(_library(), function)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
