"""A file system that does not answer, as that of a dead disk or file server: SIGKILL does not end who waits for it."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from tfcluster.os import libc, procfs
from tfcluster.transport.channel import readable_fds

_DETACH = 2  # MNT_DETACH
_HEADER = struct.Struct("=IIQ")  # of requests and replies of FUSE: length, what is asked for or an error, a number
_REQUEST_BYTES = 1 << 17
_INIT = 26
# struct fuse_init_out of version 7.31, without optional features.
_INITIALIZED = struct.pack("=IIIIHHIIHHI7I", 7, 31, 0, 0, 1, 1, 1 << 16, 1, 1, 0, 0, *[0] * 7)


@contextlib.contextmanager
def silent_file_system(folder: Path) -> Iterator[None]:
    """Mount a file system on an empty folder, which takes root; at the end of the block its requests fail.

    All requests are received, as the kernel interrupts those that are not.
    """
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    reading, writing = os.pipe()

    def receive() -> None:
        while reading not in (readable := readable_fds([fuse, reading], None)):
            if fuse in readable:
                _, asked, number = _HEADER.unpack_from(os.read(fuse, _REQUEST_BYTES))
                if asked == _INIT:
                    os.write(fuse, _HEADER.pack(_HEADER.size + len(_INITIALIZED), 0, number) + _INITIALIZED)

    try:
        options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        libc.call("mount", b"silent", os.fsencode(folder), b"fuse", 0, options.encode())
        thread = threading.Thread(target=receive)
        thread.start()
        try:
            yield
        finally:
            os.close(writing)
            thread.join()
            libc.call("umount2", os.fsencode(folder), _DETACH)
    finally:
        for fd in (fuse, reading):
            os.close(fd)


def is_stuck(pid: int) -> bool:
    """Return whether a thread of a process waits for the file system."""
    with contextlib.suppress(OSError):  # a thread has just ended
        return any(procfs.waits_in(pid, thread) == "request_wait_answer" for thread in procfs.threads(pid))
    return False
