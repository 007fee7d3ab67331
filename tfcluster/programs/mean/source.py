"""Where the numbers are: in a file that the tasks map into their memory, or nowhere, made from their own places."""

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
#: What a task computes with as it lies in the file.
_NATIVE = {np.dtype(kind) for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}


@dataclass(frozen=True)
class MappedFile:
    """Numbers in a file, in the order in which they lie there.

    Attributes:
        name: What the user calls it.
        path: Where any process of this user on this host finds the very file, whatever becomes of its name.
        skipped: Bytes in front of the numbers.
        values: The numbers, one-dimensional, mapped.
    """

    name: str
    path: str
    skipped: int
    values: npt.NDArray[Any]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type as the tasks get it."""
        return self.values.dtype if self.values.dtype in _NATIVE else np.dtype(np.float64)

    @property
    def can_be_mapped(self) -> bool:
        """Whether a task can compute with them as they lie in the file."""
        return self.values.dtype in _NATIVE and self.skipped % self.values.dtype.itemsize == 0

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Some of them."""
        return self.values[start:stop].astype(self.dtype)


@dataclass(frozen=True)
class RandomNumbers:
    """Numbers that are uniform in [0, 1), each made of the seed and its own place.

    Attributes:
        count: How many there are.
        seed: The generator's key.
    """

    count: int
    seed: int

    @property
    def name(self) -> str:
        """What the user calls them."""
        return f"--random {self.count}"


def open_array(path: Path, name: str) -> MappedFile | None:
    """The numbers of a .npy file; None for a file that is none.

    The file stays open until this process ends: the tasks find it by way of the descriptor.

    Raises:
        ClusterError: It cannot be read, is cut off, or is not of numbers.
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
    """The numbers of an open file that has nothing but float64 values in this machine's order; it must stay open."""
    here = f"/proc/{os.getpid()}/fd/{descriptor}"
    empty = not os.fstat(descriptor).st_size
    return MappedFile(name, here, 0, np.zeros(0) if empty else np.memmap(here, np.float64, "r"))


class SameHostToken:
    """Random bytes in a file that only this process has: a task that reads them there is on the same machine.

    Attributes:
        path: Where any process of this user on this host finds it.
        value: The bytes.
    """

    def __init__(self) -> None:
        self.value = os.urandom(16)
        descriptor = os.memfd_create("tfcluster")
        os.write(descriptor, self.value)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"


def refuse_none(numbers: MappedFile) -> None:
    """Refuse an input without numbers.

    Raises:
        ClusterError: There are none.
    """
    if not numbers.count:
        raise ClusterError(f"{numbers.name}: has no numbers", exit_code=ExitCode.USAGE)


def tensor_type(dtype: np.dtype[Any]) -> Any:
    """TensorFlow's name of a type."""
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
