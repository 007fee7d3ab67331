"""The standard streams of a program: the command's standard input, and pipes or terminals that its driver reads."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import select
import socket
import struct
import sys
import termios
import tty
from pathlib import Path
from typing import Any, Protocol, TextIO

from tfcluster import settings
from tfcluster.core.caller import OutputStreams
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import peer_credentials
from tfcluster.processes.runs.run_plan import TERMINAL_SIZE

STDOUT, STDERR = "stdout", "stderr"


class OutputSink(Protocol):
    """Takes what a program prints."""

    def append(self, stream: str, data: bytes, /) -> None:
        """Take what has arrived on a stream."""


class OutputCapture:
    """Captures the output of a program."""

    def __init__(self, sink: OutputSink, streams: OutputStreams) -> None:
        self._sink = sink
        stdout, program_stdout = _open_stream(streams.stdout_is_terminal, streams)
        # The name of each stream that a process may still write to, by the descriptor to read it from.
        self.streams = {stdout: STDOUT}
        # The descriptors of the program's standard output and standard error.
        self.program_fds = (program_stdout, program_stdout)
        if not streams.is_shared:
            stderr, program_stderr = _open_stream(streams.stderr_is_terminal, streams)
            self.streams[stderr] = STDERR
            self.program_fds = (program_stdout, program_stderr)

    def close_program_fds(self) -> None:
        """Close the descriptors of the program, which has them."""
        for fd in set(self.program_fds):
            os.close(fd)

    def resize(self, folder: Path) -> None:
        """Give the program's terminals the size that the agent has written to the run's folder."""
        with contextlib.suppress(OSError, ValueError):  # the signal is not of the agent, which writes it
            columns, lines = map(int, (folder / TERMINAL_SIZE).read_text().split())
            for fd in self.streams:
                with contextlib.suppress(OSError):  # a pipe
                    _set_size(fd, lines, columns)

    def read(self, fd: int) -> bool:
        """Read and record what has arrived on a stream; do not block.

        Return whether there was anything. The descriptor is closed at the stream's end.
        """
        try:
            data = os.read(fd, settings.IO_BLOCK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:  # a terminal has no end of file
            if error.errno != errno.EIO:
                raise
            data = b""
        if data:
            self._sink.append(self.streams[fd], data)
        else:
            os.close(fd)
            del self.streams[fd]
        return bool(data)

    def drain(self) -> None:
        """Record what the program had written when it exited.

        A background process that it has left may continue to write, so this reads no more than what fits in a pipe.
        """
        for fd in list(self.streams):
            for _ in range(settings.DRIVER_DRAIN_BLOCKS):
                if not self.read(fd):
                    break

    def record_until_closed(self) -> None:
        """Record what background processes write that the program has left, until all of them have exited."""
        poll = select.poll()
        for fd in self.streams:
            poll.register(fd, select.POLLIN)
        while self.streams:
            for fd, _ in poll.poll():
                self.read(fd)
                if fd not in self.streams:
                    poll.unregister(fd)


def _open_stream(is_terminal: bool, streams: OutputStreams) -> tuple[int, int]:
    """Open a pipe, or a terminal that passes each byte on as it is.

    Return the descriptor to read from, which does not block, and the one that the program gets.
    """
    if is_terminal:
        with contextlib.suppress(OSError):  # a container may have no terminals; then a pipe has to do
            return _open_terminal(streams.lines, streams.columns)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def _open_terminal(lines: int, columns: int) -> tuple[int, int]:
    reading, writing = os.openpty()
    tty.setraw(writing)  # the user's own terminal does what a terminal does with a line's end
    _set_size(writing, lines, columns)
    os.set_blocking(reading, False)
    return reading, writing


def _set_size(fd: int, lines: int, columns: int) -> None:
    """Set the size of a terminal; raise an OSError if the descriptor is not one."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", lines % 2**16, columns % 2**16, 0, 0))


def receive_stdin(name: str) -> int | None:
    """Take over the standard input of the command that waits for a run, and return its descriptor.

    `name` is the name, in the abstract namespace, of the command's socket. Return None if nothing in this process's
    network has it. Raises ClusterError: the command does not hand it over.
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
