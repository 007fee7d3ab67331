"""What a script takes over from this command: its environment, its standard input, and the shape of its output."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading

from tfcluster.core.caller import Caller, OutputStreams
from tfcluster.os.process_handle import peer_credentials

_STDIN, _STDOUT, _STDERR = 0, 1, 2


class StdinServer:
    """Hands the standard input over to the driver of a run, which gives it to the script.

    The socket is in the abstract namespace, so that nothing is left of it, and gives only to processes of this user.
    """

    def __init__(self) -> None:
        self.name = f"tfcluster-stdin-{os.urandom(16).hex()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen()

    def __enter__(self) -> StdinServer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's wait
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                if peer_credentials(connection)[1] == os.getuid():
                    _send_stdin(connection)


def _send_stdin(connection: socket.socket) -> None:
    """Send the standard input; of a command in the background, whose terminal another process reads, /dev/null."""
    is_in_background = False
    with contextlib.suppress(OSError):  # a terminal that does not control this session can be read like a pipe
        is_in_background = os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) != os.getpgrp()
    with open(os.devnull, "rb") as nothing:
        socket.send_fds(connection, [b"\0"], [nothing.fileno() if is_in_background else _STDIN])


def describe_caller(stdin: str | None) -> Caller:
    """Describe this process to the driver of its script.

    `stdin` names the socket that hands the standard input over; None if the script gets none.
    """
    umask = os.umask(0)
    os.umask(umask)
    return Caller(dict(os.environ), umask, stdin)


def terminal_size() -> os.terminal_size:
    """Return the size of the terminal that this process writes to; if there is none, what COLUMNS and LINES say."""
    for fd in (_STDOUT, _STDERR):
        if os.isatty(fd):
            return os.get_terminal_size(fd)
    return shutil.get_terminal_size()


def describe_output() -> OutputStreams:
    """Describe the standard output and standard error of this process."""
    size = terminal_size()
    return OutputStreams(
        stdout_is_terminal=os.isatty(_STDOUT),
        stderr_is_terminal=os.isatty(_STDERR),
        is_shared=os.path.sameopenfile(_STDOUT, _STDERR),
        columns=size.columns,
        lines=size.lines,
    )
