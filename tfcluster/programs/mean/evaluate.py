"""Evaluate pieces on devices: of random numbers, of a file that the task mmaps, or of windows that are fed to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfcluster.programs.context import Context
from tfcluster.programs.map_reduce import SessionPool
from tfcluster.programs.mean.partition import WindowPieces
from tfcluster.programs.mean.source import MappedFile, RandomNumbers, SameHostToken, tensor_type
from tfcluster.programs.mean.window import fed_window, made_windows, mapped_windows

Rows = npt.NDArray[np.float64]


class RandomSourceEvaluator:
    """Computes the sums of pieces of random numbers, which the devices generate. A context manager.

    Args:
        context: The run.
        devices: Full names of the devices.
        numbers: The number and the seed of the random numbers.
        pieces: The pieces.
        size: Number of numbers in a window.
    """

    def __init__(
        self, context: Context, devices: Sequence[str], numbers: RandomNumbers, pieces: WindowPieces, size: int
    ) -> None:
        self._devices = SessionPool(context, devices, partial(made_windows, size))
        self._key = (numbers.seed & 0xFFFFFFFF, numbers.seed >> 32)
        self._pieces = pieces
        self._size = size

    def __enter__(self) -> RandomSourceEvaluator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._devices.__exit__(kind, error, trace)

    def __call__(self, device: str, first: int, count: int) -> Rows:
        """Return the sums of the pieces `first` … `first + count - 1`, as rows; see window.sums_of."""
        pieces = slice(first, first + count)
        starts = self._pieces.window[pieces] * self._size
        bounds = {"low": self._pieces.low[pieces], "high": self._pieces.high[pieces]}
        rows: Rows = self._devices.run(device, {"start": starts, "key": self._key, **bounds})
        return rows


class FileSourceEvaluator:
    """Computes the sums of pieces of the numbers in a file. A context manager.

    Args:
        context: The run.
        devices: Full names of the devices.
        numbers: The numbers.
        pieces: The pieces.
        size: Number of numbers in a window.
    """

    def __init__(
        self, context: Context, devices: Sequence[str], numbers: MappedFile, pieces: WindowPieces, size: int
    ) -> None:
        self._context = context
        self._used = devices
        self._numbers = numbers
        self._pieces = pieces
        self._size = size
        # The last window is moved back, so that it ends where the numbers end.
        last = max(0, numbers.count - size)
        self._starts = np.minimum(pieces.window * size, last)
        moved = pieces.window * size - self._starts
        self._low, self._high = pieces.low + moved, pieces.high + moved
        self._mark = SameHostToken()
        self._stack = contextlib.ExitStack()
        self._mapping: SessionPool | None = None
        self._feeding: SessionPool | None = None
        self._lock = threading.Lock()
        self._blind = set(devices)
        if numbers.can_be_mapped and numbers.count >= size:
            build = partial(mapped_windows, numbers, self._mark, size)
            self._mapping = self._stack.enter_context(SessionPool(context, devices, build, as_written=True))
            self._blind.clear()

    def __enter__(self) -> FileSourceEvaluator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def __call__(self, device: str, first: int, count: int) -> Rows:
        """Return the sums of the pieces `first` … `first + count - 1`, as rows; see window.sums_of."""
        if device not in self._blind:
            rows = self._map(device, slice(first, first + count))
            if rows is not None:
                return rows
            self._blind.add(device)
        return np.concatenate([self._feed(device, piece) for piece in range(first, first + count)])

    def _map(self, device: str, pieces: slice) -> Rows | None:
        """Compute the sums on a task that maps the file into its memory.

        Returns:
            The sums, or None if the task does not see this very file.
        """
        assert self._mapping is not None
        feed = {"start": self._starts[pieces], "low": self._low[pieces], "high": self._high[pieces]}
        rows: Rows
        try:
            rows, seen = self._mapping.run(device, feed)
        except tf.errors.OpError as error:
            # The task is on another machine: the path's process does not exist there, or its file is another one, which
            # is too short.
            if isinstance(error, (tf.errors.NotFoundError, tf.errors.InternalError, tf.errors.PermissionDeniedError)):
                return None
            raise
        return rows if seen.tobytes() == self._mark.value else None

    def _feed(self, device: str, piece: int) -> Rows:
        start = int(self._starts[piece])
        values = self._numbers.read(start, min(start + self._size, self._numbers.count))
        padded = np.zeros(self._size, values.dtype)
        padded[: len(values)] = values
        feed = {"start": [0], "low": [self._low[piece]], "high": [self._high[piece]], "values": padded}
        rows: Rows = self._feeder().run(device, feed)
        return rows

    def _feeder(self) -> SessionPool:
        with self._lock:
            if self._feeding is None:
                build = partial(fed_window, tensor_type(self._numbers.dtype), self._size)
                self._feeding = self._stack.enter_context(SessionPool(self._context, self._used, build))
            return self._feeding


def read_piece(numbers: MappedFile, pieces: WindowPieces, size: int, piece: int) -> npt.NDArray[Any]:
    """Return the numbers of a piece."""
    start = int(pieces.window[piece]) * size
    return numbers.read(start + int(pieces.low[piece]), start + int(pieces.high[piece]))
