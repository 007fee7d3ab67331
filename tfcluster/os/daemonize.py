"""Set up a process that was just forked: new session, redirected output, closed descriptors, own title."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from tfcluster import settings
from tfcluster.os import procfs
from tfcluster.os.procfs import ARG_END, ARG_START

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINE_BUFFERED = 1  # _IOLBF
_buffers: list[ctypes.Array[ctypes.c_char]] = []  # the C library uses them until the process exits


def detach(title: str, *, log: Path | None = None, keep: Iterable[int] = (), parent: int | None = None) -> None:
    """Detach a newly forked process from its parent.

    Args:
        log: The file for stdout and stderr, or None to keep them: the process may outlive the reader of a pipe.
        keep: Descriptors that stay open besides 0, 1 and 2.
        parent: The pid of the parent, if the kernel is to kill this process when the parent exits for any reason. None
            for a process that may outlive its parent, such as a server or a run's driver.
    """
    if parent is not None:
        set_parent_death_signal(parent)
    # The parent may have its own handlers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    # A garbage collection would write to, and thereby copy, every page that is shared with the parent.
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
    """Make C's stdout and stderr line-buffered: by default a file gets stdout in blocks and stderr word by word."""
    libc = ctypes.CDLL(None)
    for stream in ("stdout", "stderr"):
        # Pass a buffer: without one, glibc's stderr would keep its buffer of a single byte.
        buffer = ctypes.create_string_buffer(settings.STDOUT_LINE_MAX_BYTES)
        _buffers.append(buffer)
        libc.setvbuf(
            ctypes.c_void_p.in_dll(libc, stream),
            buffer,
            _LINE_BUFFERED,
            ctypes.c_size_t(settings.STDOUT_LINE_MAX_BYTES),
        )


def set_parent_death_signal(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent exits (PR_SET_PDEATHSIG), at once if it has exited already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent exited before the call to prctl
        os._exit(1)


def outlive_parent() -> None:
    """Undo `set_parent_death_signal`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def become_subreaper() -> None:
    """Have the kernel make this process the parent of orphaned descendants: daemons that the program starts.

    Where the kernel restricts ptrace (Yama's ptrace_scope = 1) and the user is not root, only an ancestor can duplicate
    a process's socket, as `ListenGuard` does. A daemon whose parent has exited would have no other ancestor but init.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def close_fds(keep: set[int]) -> None:
    """Close all other descriptors, which would keep the parent's sockets, ports and lock alive."""
    for fd in procfs.descriptors(os.getpid()):
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the descriptor that the list was read with
                continue


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit: the default is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def set_process_title(title: str) -> None:
    """Set the title that `ps` shows instead of the command line of the process that this one was forked from.

    The kernel reads it from the memory that held the arguments, so it is cut to that size. The package setproctitle
    does the same in C; this needs no compiled extension on the hosts.
    """
    fields = procfs.stat_fields(os.getpid())
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    room = end - start
    if start and room > 1:
        ctypes.memmove(start, os.fsencode(title)[: room - 1].ljust(room, b"\0"), room)
    Path("/proc/self/comm").write_bytes(os.fsencode(title)[:15])


def ask_in_fork(function: Callable[[], bytes]) -> bytes:
    """Return what a function returns in a fork; empty if it raised, or took too long. Raises OSError if fork fails."""
    reading, writing = os.pipe()
    with open(reading, "rb") as answer, open(writing, "wb", 0) as pipe:
        pid = os.fork()
        if pid == 0:
            signal.alarm(settings.FORK_ANSWER_SECONDS)
            try:
                pipe.write(function())
            finally:
                os._exit(0)
        pipe.close()
        result = answer.read()
    os.waitpid(pid, 0)
    return result
