"""The standard streams of a script: taken over from the command that runs it, and opened again in its interpreter."""

from __future__ import annotations

import io
import os
import socket
import sys
from typing import Any, TextIO

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import peer_credentials


def receive_stdin(name: str) -> int | None:
    """Take over the standard input of the command that waits for a run, and return its descriptor.

    `name` is the name, in the abstract namespace, of the command's socket. Return None if nothing in this process's
    network has it.

    Raises:
        ClusterError: The command does not hand it over.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(settings.DRIVER_STDIN_SECONDS)
            connection.connect(f"\0{name}")
            if peer_credentials(connection)[1] != os.getuid():
                raise PermissionError("it is another account's")
            _, fds, _, _ = socket.recv_fds(connection, 1, 1)
    except ConnectionRefusedError:
        return None
    except OSError as error:
        raise ClusterError(f"the command's standard input cannot be taken over: {error.strerror or error}") from error
    if not fds:
        raise ClusterError("the command did not hand over its standard input")
    return fds[0]


def connect_streams(stdin: int | None, outputs: tuple[int, int]) -> None:
    """Make descriptors the standard streams of this process.

    `stdin` is None to keep the present one.
    """
    if stdin is not None:
        os.dup2(stdin, 0)
        os.close(stdin)
    for number, fd in enumerate(outputs, 1):
        os.dup2(fd, number)
    for fd in set(outputs):
        os.close(fd)


def open_streams() -> None:
    """Replace sys.stdin, sys.stdout and sys.stderr by what a fresh interpreter makes of its descriptors.

    An interpreter that was forked has objects that know the descriptors of its parent.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _open_like(getattr(sys, name), fd, name)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _open_like(stream: Any, fd: int, name: str) -> TextIO:
    """Open a descriptor with the encoding of an earlier stream, buffered as the interpreter buffers it."""
    mode = "r" if name == "stdin" else "w"
    is_unbuffered: bool = mode == "w" and stream.write_through
    binary: Any = open(fd, f"{mode}b", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    (binary if is_unbuffered else binary.raw).name = f"<{name}>"
    text: Any = io.TextIOWrapper(
        binary,
        stream.encoding,
        stream.errors,
        newline="\n",
        line_buffering=name == "stderr" or (mode == "w" and binary.isatty()),
        write_through=is_unbuffered,
    )
    text.mode = mode
    opened: TextIO = text
    return opened
