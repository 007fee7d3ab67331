"""Bindings to TensorFlow's C API through ctypes: load the library and run a server."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from tfcluster.errors import ClusterError
from tfcluster.tf_install import INSTALL_TENSORFLOW


class TensorFlowError(Exception):
    """A call of TensorFlow's C API failed; the message is TensorFlow's."""


class TensorFlow:
    """The loaded library. Loading it starts no thread, so the process can still fork afterwards."""

    def __init__(self, library: Path) -> None:
        try:
            with _discarded_stderr():
                self._lib = ctypes.CDLL(str(library))
        except OSError as error:
            # The loader's text for ENOMEM and EAGAIN, which has no errno.
            lacks_memory = "failed to map segment" in str(error) or "cannot allocate memory" in str(error)
            hint = "The limit on memory (`ulimit -v`) is too low." if lacks_memory else INSTALL_TENSORFLOW
            raise ClusterError(f"{library} cannot be loaded: {error}", hint=hint) from error
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

    def new_server(self, server_def: bytes) -> int:
        """Create a server whose port is bound but that does not serve yet; it exists until the process exits.

        `server_def` is a serialised ServerDef; see `protos.server_def`. The handle that is returned is for the other
        methods. Raises TensorFlowError: the server could not be created, for example because the port is already in
        use.
        """
        return int(self._call("TF_NewServer", server_def, len(server_def)) or 0)

    def start(self, server: int) -> None:
        """Start to serve; raise a TensorFlowError if that fails."""
        self._call("TF_ServerStart", server)

    def join(self, server: int) -> None:
        """Serve until the process exits; TensorFlow's servers cannot be stopped gracefully."""
        self._call("TF_ServerJoin", server)

    def _call(self, function: str, *arguments: object) -> int | None:
        """Call a function whose last argument is a status, and raise a TensorFlowError if the status is one."""
        status = self._lib.TF_NewStatus()
        result: int | None = getattr(self._lib, function)(*arguments, status)
        if self._lib.TF_GetCode(status) != 0:
            raise TensorFlowError(self._lib.TF_Message(status).decode(errors="replace"))
        return result


@contextlib.contextmanager
def _discarded_stderr() -> Iterator[None]:
    """Discard what the library prints to standard error while it is loaded: messages about its own build."""
    stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
