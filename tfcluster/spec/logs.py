"""The schema of `logs:`, the limits of log rotation: how much of each task's output is kept."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt

from tfcluster import settings
from tfcluster.spec.base import FrozenModel, validation_error

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgt]?)(i?)b", re.IGNORECASE)


def _size(value: Any) -> int:
    """Parse a size: a number of bytes, or text such as 10 MB or 1 GiB.

    Returns:
        The size in bytes.
    """
    size = value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)) and (match[2] or not match[3]):
        # 1 kB is 1000 bytes, 1 KiB is 1024.
        size = round(float(match[1]) * (1024 if match[3] else 1000) ** ("", *"kmgt").index(match[2].lower()))
    if isinstance(size, bool) or not isinstance(size, int):
        raise validation_error("found", "expected a size such as 10 MB, 1 GiB or 500 kB, or bytes")
    if not settings.LOG_FILE_MIN_BYTES <= size <= settings.LOG_FILE_MAX_BYTES:
        raise validation_error(
            "found", "must be 1 kB or more" if size < settings.LOG_FILE_MIN_BYTES else "must be 1000 TB or less"
        )
    return size


class Logs(FrozenModel):
    """The limits of log rotation: how much of each task's output is kept.

    Attributes:
        size: The size of each file of a task's log, in bytes.
        count: The maximum number of files of each task's log; rotation deletes the oldest one.
    """

    size: Annotated[int, BeforeValidator(_size)] = settings.LOG_FILE_BYTES
    count: Annotated[StrictInt, Field(ge=1, le=1000)] = settings.LOG_FILES
