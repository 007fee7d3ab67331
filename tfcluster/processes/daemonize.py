"""Set up a process that was forked from the agent: new session, redirected output, closed descriptors, own title."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

from tfcluster import settings
from tfcluster.process_handle import MARK, NO_MARK, environment_address

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINE_BUFFERED = 1  # _IOLBF
_buffers: list[ctypes.Array[ctypes.c_char]] = []  # the C library uses them until the process exits


def detach(title: str, *, log: Path | None = None, keep: Iterable[int] = (), parent: int | None = None) -> None:
    """Detach a newly forked process from the agent.

    Args:
        log: The file for standard output and standard error, or None to keep them as they are. It is a file rather
            than a pipe because the process may outlive the reader of a pipe.
        keep: Descriptors that stay open besides 0, 1 and 2.
        parent: The pid of the parent, if the kernel is to kill this process when the parent exits for any reason. None
            for a process that may outlive its parent, such as a server or a run's driver.
    """
    if parent is not None:
        set_parent_death_signal(parent)
    # The agent has handlers of its own.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    # A garbage collection would write to, and thereby copy, every page that is shared with the agent.
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
    """Make the C library's stdout and stderr line-buffered, for code in C and C++.

    For a file, stdout would be written in blocks and stderr would be written unbuffered, word by word.
    """
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
    """Have the kernel end this process when its parent exits (PR_SET_PDEATHSIG).

    If the parent has exited already, this process exits at once.
    """
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
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the descriptor that os.listdir used and has closed
                continue


def set_process_title(title: str) -> None:
    """Set the title that `ps` shows instead of the command line of the agent.

    The kernel reads a process's command line from the memory that held its arguments, so the title is written there
    and cut to the size of that memory. The package setproctitle does the same in C; this needs no compiled extension
    on the hosts.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc(5)
    room = end - start
    if start and room > 1:
        ctypes.memmove(start, os.fsencode(title)[: room - 1].ljust(room, b"\0"), room)
    Path("/proc/self/comm").write_bytes(os.fsencode(title)[:15])


def set_mark(mark: str) -> None:
    """Overwrite the mark in the environment with which this process, or the one that forked it, was started.

    The kernel shows that environment (/proc/PID/environ), and a forked process has the same one as its parent. So all
    processes that the agent forks, and all that these fork, can be found by the mark without any file. A program that
    is started by exec gets a new environment.

    The mark is NO_MARK for what does not belong to the cluster although it was forked from its processes.
    """
    # The NUL in front excludes a variable whose name merely ends with this one's name.
    environment = b"\0" + Path("/proc/self/environ").read_bytes()
    found = re.search(rb"\0%b=([0-9a-f]{%d})\0" % (MARK.encode(), len(NO_MARK)), environment)
    address = environment_address()
    if found and address:
        ctypes.memmove(address + found.start(1) - 1, mark.encode(), len(mark))
    os.environ[MARK] = mark
