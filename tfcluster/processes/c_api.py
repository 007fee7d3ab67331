"""TensorFlow's C API through ctypes: loading the library and running a server with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from tfcluster.errors import ClusterError
from tfcluster.tf_install import INSTALL_TENSORFLOW


class TensorFlowError(Exception):
    """What TensorFlow said when a call failed."""


class TensorFlow:
    """The loaded library. Loading starts no thread, so the process can be forked afterwards."""

    def __init__(self, library: Path) -> None:
        try:
            with _standard_error_closed():
                self._lib = ctypes.CDLL(str(library))
        except OSError as error:
            raise ClusterError(f"{library} cannot be loaded: {error}", hint=INSTALL_TENSORFLOW) from error
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for name, result, arguments in (
            ("TF_Version", text, []),
            ("TF_NewStatus", pointer, []),
            ("TF_GetCode", ctypes.c_int, [pointer]),
            ("TF_Message", text, [pointer]),
            ("TF_NewServer", pointer, [text, ctypes.c_size_t, pointer]),
            ("TF_ServerStart", None, [pointer, pointer]),
            ("TF_ServerJoin", None, [pointer, pointer]),
        ):
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        self.version: str = self._lib.TF_Version().decode()

    def new_server(self, server_def: bytes) -> Server:
        """A server whose port is bound but which serves nothing yet.

        Raises:
            TensorFlowError: It could not be made, as when the port is taken.
        """
        status = self._lib.TF_NewStatus()
        handle = self._lib.TF_NewServer(server_def, len(server_def), status)
        self._check(status)
        return Server(self, handle, status)

    def _check(self, status: int) -> None:
        if self._lib.TF_GetCode(status) != 0:
            raise TensorFlowError(self._lib.TF_Message(status).decode(errors="replace"))

    def start(self, handle: int, status: int) -> None:
        """Let a server serve; see `Server.start`."""
        self._lib.TF_ServerStart(handle, status)
        self._check(status)

    def join(self, handle: int, status: int) -> None:
        """Wait on a server; see `Server.join`."""
        self._lib.TF_ServerJoin(handle, status)
        self._check(status)


@contextlib.contextmanager
def _standard_error_closed() -> Iterator[None]:
    """Keep back what the library prints while it is loaded: lines about its build, of which none is about us."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


class Server:
    """One server made by `TensorFlow.new_server`; it lives as long as the process."""

    def __init__(self, tensorflow: TensorFlow, handle: int, status: int) -> None:
        self._tensorflow = tensorflow
        self._handle = handle
        self._status = status

    def start(self) -> None:
        """Begin to serve.

        Raises:
            TensorFlowError: It could not.
        """
        self._tensorflow.start(self._handle, self._status)

    def join(self) -> None:
        """Serve until the process ends; TensorFlow has no graceful stop."""
        self._tensorflow.join(self._handle, self._status)
