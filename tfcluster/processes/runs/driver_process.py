"""What the drivers of runs do as processes: they reap orphans, wake on signals, and end as their program has ended."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Collection
from typing import NoReturn

#: What a terminal or a shell sends to all processes of the foreground process group.
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
#: What a user sends to one process.
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


def reap_orphans(programs: Collection[int]) -> None:
    """Reap the daemons of programs that have exited, since this process is their parent; not the programs."""
    while True:
        try:
            exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there is none
            return
        if exited is None or exited.si_pid in programs:
            return
        os.waitpid(exited.si_pid, 0)


def wake_on_signals() -> socket.socket:
    """Install handlers by which signals make a socket readable, and neither end nor stop this process.

    Return the socket, from which the numbers of the signals are read.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in (*TERMINAL_SIGNALS, *USER_SIGNALS, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *arguments: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return reading


def restore_signals() -> None:
    """Undo `wake_on_signals` in a forked process, in which a program is to find the signals as they are by default."""
    signal.set_wakeup_fd(-1)
    for number in (*TERMINAL_SIGNALS, *USER_SIGNALS, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def end_like(code: int) -> NoReturn:
    """End this process with an exit code or, if it is negative, by that signal.

    There is no core dump, as the program has already written one.
    """
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)  # reached with a signal whose default action does not end a process
