"""Sources of numbers: a file that the tasks mmap, or random numbers that are generated from their positions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfcluster.errors import ClusterError, ExitCode

_MAGIC = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
#: Types that a task can read directly from the mapped file.
_NATIVE = {np.dtype(kind) for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}


@dataclass(frozen=True)
class MappedFile:
    """The numbers in a file, in the order in which the file stores them.

    Attributes:
        name: The user's name for the file.
        path: A path by which any process of this user on this host can open this very file, even if it is renamed or
            deleted.
        skipped: Number of bytes before the numbers.
        values: The numbers, as a one-dimensional memory-mapped array.
    """

    name: str
    path: str
    skipped: int
    values: npt.NDArray[Any]

    @property
    def count(self) -> int:
        """Return how many numbers there are."""
        return len(self.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the numbers as tasks receive them."""
        return self.values.dtype if self.values.dtype in _NATIVE else np.dtype(np.float64)

    @property
    def can_be_mapped(self) -> bool:
        """Return whether a task can read the numbers directly from the mapped file, without conversion."""
        return self.values.dtype in _NATIVE and self.skipped % self.values.dtype.itemsize == 0

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the numbers `start` … `stop - 1`, converted to `dtype`."""
        return self.values[start:stop].astype(self.dtype)


@dataclass(frozen=True)
class RandomNumbers:
    """Random numbers that are uniform in [0, 1), each generated from the seed and its own position.

    Attributes:
        count: How many numbers there are.
        seed: Key of the generator.
    """

    count: int
    seed: int

    @property
    def name(self) -> str:
        """Return the user's name for the numbers."""
        return f"--random {self.count}"


def open_array(path: Path, name: str) -> MappedFile | None:
    """Open a .npy file and map its numbers.

    The file stays open until this process ends, because the tasks open it through this process's file descriptor.

    Args:
        path: Path of the file.
        name: The user's name for the file.

    Returns:
        The numbers, or None if the file is not a .npy file.

    Raises:
        ClusterError: The file cannot be read, is truncated, or does not contain numbers.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        start = os.pread(descriptor, len(_MAGIC), 0)
    except OSError as error:
        raise ClusterError(f"{name}: cannot be read: {error.strerror}", exit_code=ExitCode.USAGE) from error
    if start.startswith(_ZIP):
        raise ClusterError(
            f"{name}: is a .npz archive", hint="Save one array with numpy.save.", exit_code=ExitCode.USAGE
        )
    if start != _MAGIC:
        os.close(descriptor)
        return None
    here = f"/proc/{os.getpid()}/fd/{descriptor}"
    try:
        array = np.load(here, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ClusterError(f"{name}: is no whole .npy file of numbers: {error}", exit_code=ExitCode.USAGE) from error
    _refuse_others_than_numbers(array.dtype, name)
    assert isinstance(array, np.memmap)
    return MappedFile(name, here, array.offset, array.reshape(-1, order="A"))


def map_floats(descriptor: int, name: str) -> MappedFile:
    """Map an open file that contains only float64 values in native byte order.

    Args:
        descriptor: Descriptor of the file, which must stay open.
        name: The user's name for the numbers.
    """
    here = f"/proc/{os.getpid()}/fd/{descriptor}"
    empty = not os.fstat(descriptor).st_size
    return MappedFile(name, here, 0, np.zeros(0) if empty else np.memmap(here, np.float64, "r"))


class SameHostToken:
    """Random bytes in an anonymous file of this process: a task that reads them from there is on the same host.

    Attributes:
        path: A path by which any process of this user on this host can open the file.
        value: The bytes.
    """

    def __init__(self) -> None:
        self.value = os.urandom(16)
        descriptor = os.memfd_create("tfcluster")
        os.write(descriptor, self.value)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"


def refuse_none(numbers: MappedFile) -> None:
    """Check that the input has numbers.

    Raises:
        ClusterError: The input has no numbers.
    """
    if not numbers.count:
        raise ClusterError(f"{numbers.name}: has no numbers", exit_code=ExitCode.USAGE)


def tensor_type(dtype: np.dtype[Any]) -> Any:
    """Return the TensorFlow type that corresponds to a NumPy type."""
    return tf.as_dtype(dtype.type)


def _refuse_others_than_numbers(dtype: np.dtype[Any], name: str) -> None:
    if dtype.kind == "c":
        raise ClusterError(
            f"{name}: has complex numbers ({dtype})",
            hint="Save the real part, the imaginary part or the modulus, and take the mean of that.",
            exit_code=ExitCode.USAGE,
        )
    if dtype.kind not in "biuf":
        what = "a structured type" if dtype.fields else f"the type {dtype}"
        raise ClusterError(f"{name}: has {what}, not numbers", exit_code=ExitCode.USAGE)
