"""What every process forked from the agent does first: let go of all that is the agent's."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LINE_BUFFERED = 1  # _IOLBF
_LINE_BUFFER = 1 << 14  # a longer line is written in parts
_buffers: list[ctypes.Array[ctypes.c_char]] = []  # C uses them as long as the process lives


def detach(title: str, *, log: Path | None = None, keep: Iterable[int] = (), parent: int | None = None) -> None:
    """Turn a fresh fork of the agent into a process of its own.

    Args:
        title: What `ps` shows.
        log: Where standard output and error go. A file rather than a pipe: the process may outlive whoever
            would read the pipe. None keeps them as they are.
        keep: Descriptors that stay open besides 0, 1 and 2.
        parent: The pid of the parent that it must not outlive, however that ends; None for a process, as a
            server or a run's driver, that is worth more than its parent.
    """
    if parent is not None:
        set_parent_death_signal(parent)
    # The agent's event loop has a handler of its own for it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()
    # A collection would touch, and so copy, every page that is shared with the agent.
    gc.freeze()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    if log is not None:
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _buffer_lines()
    close_fds({0, 1, 2, *keep})
    set_process_title(title)


def _buffer_lines() -> None:
    """Have C and C++ write each line when it is whole: a file would get it by the block, or word by word."""
    libc = ctypes.CDLL(None)
    for stream in ("stdout", "stderr"):
        # One of our own: with none given, glibc's stderr keeps the one of a single byte that it has.
        buffer = ctypes.create_string_buffer(_LINE_BUFFER)
        _buffers.append(buffer)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, stream), buffer, _LINE_BUFFERED, ctypes.c_size_t(_LINE_BUFFER))


def set_parent_death_signal(parent: int) -> None:
    """Have the kernel kill this process when its parent, of that pid, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def close_fds(keep: set[int]) -> None:
    """Close every other descriptor: the parent's sockets, ports and lock would live as long as the child."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the one that listed the folder
                continue


def set_process_title(title: str) -> None:
    """Show `title` in `ps` instead of the command that the agent was started with.

    The kernel reads a process's command line from the memory that held its arguments, so the title is written
    there, cut to the room there is (setproctitle does the same in C; hosts need nothing compiled for this).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc(5)
    room = end - start
    if start and room > 1:
        ctypes.memmove(start, os.fsencode(title)[: room - 1].ljust(room, b"\0"), room)
    Path("/proc/self/comm").write_bytes(os.fsencode(title)[:15])
