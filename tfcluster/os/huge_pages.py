"""Huge pages for the memory of a process that forks others, which makes a fork and the end of its child quicker."""

from __future__ import annotations

import contextlib
import ctypes

from tfcluster.os import libc, procfs

_HUGE_PAGE_BYTES = 2 << 20  # of x86-64, and of arm64 with pages of 4 KB; elsewhere a part of the memory is left out
_MADV_COLLAPSE = 25


def collapse_memory() -> None:
    """Move the anonymous memory of this process into huge pages, if the kernel can (from Linux 6.1 on).

    A fork copies the entry of each page, and the end of a child visits each again: a huge page has one entry in place
    of 512. The kernel splits one that a child writes to, and copies only a page of 4 KB.
    """
    for start, end in procfs.anonymous_memory():
        first, last = -(-start // _HUGE_PAGE_BYTES), end // _HUGE_PAGE_BYTES
        size = ctypes.c_size_t((last - first) * _HUGE_PAGE_BYTES)
        if last > first:
            with contextlib.suppress(OSError):  # an older kernel, or no memory is left for one of the huge pages
                libc.call("madvise", ctypes.c_void_p(first * _HUGE_PAGE_BYTES), size, _MADV_COLLAPSE)
