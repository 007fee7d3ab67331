"""Sources of numbers: a file that the tasks mmap, text that is converted to one, or random numbers."""

from __future__ import annotations

import os
import tempfile
import warnings
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfcluster.errors import usage_error
from tfcluster.os import libc
from tfcluster.programs import settings
from tfcluster.programs.csv_rows import find_numbers, has_finite_number, parse_number, read_rows

_MAGIC = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
#: Types that a task can read directly from the mapped file.
_NATIVE = {np.dtype(kind) for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}


@dataclass(frozen=True)
class MappedFile:
    """The numbers in a file, in the order in which the file stores them."""

    name: str  # the user's name for the file
    path: str  # opens this very file in any process of this user on this host, even after a rename or deletion
    skipped: int  # number of bytes before the numbers
    values: npt.NDArray[Any]  # one-dimensional, memory-mapped

    @property
    def count(self) -> int:
        """Return how many numbers there are."""
        return len(self.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the numbers as tasks receive them."""
        return self.values.dtype if self.values.dtype in _NATIVE else np.dtype(np.float64)

    @property
    def tensor_type(self) -> Any:
        """Return the TensorFlow type of the numbers as tasks receive them."""
        return tf.as_dtype(self.dtype.type)

    @property
    def can_be_mapped(self) -> bool:
        """Return whether a task can read the numbers from the mapped file without conversion."""
        return self.values.dtype in _NATIVE and self.skipped % self.values.dtype.itemsize == 0

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the numbers `start` … `stop - 1`, converted to `dtype`."""
        return self.values[start:stop].astype(self.dtype)


@dataclass(frozen=True)
class RandomNumbers:
    """Random numbers that are uniform in [0, 1), each generated from the seed and its own position."""

    count: int
    seed: int  # key of the generator

    @property
    def name(self) -> str:
        """Return the user's name for the numbers."""
        return f"--random {self.count}"


def open_numbers(path: Path, name: str, column: str | None, folder: Path) -> tuple[MappedFile, list[str]]:
    """Open a .npy file, or convert text (one number per line, or a column of a CSV file) to a file in `folder` to map.

    Return notes for the user about how text was parsed. `name` is the user's name for the file. `column` is the index
    from 0 on, or the name, of the column of a CSV file; None for other files.
    """
    numbers, notes = open_array(path, name), []
    if numbers is not None and column is not None:
        raise usage_error(f"{name}: is a .npy file; --column is for CSV files")
    if numbers is None:
        with tempfile.TemporaryFile(dir=folder) as floats:  # unnamed: deleted with this process
            notes = _write_floats(path, name, column, floats)
            numbers = _map_floats(os.dup(floats.fileno()), name)
    if not numbers.count:
        raise usage_error(f"{name}: has no numbers")
    return numbers, notes


def open_array(path: Path, name: str) -> MappedFile | None:
    """Open a .npy file and map its numbers; return None if the file is not a .npy file.

    The file stays open until this process ends, because the tasks open it through this process's file descriptor.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        start = os.pread(descriptor, len(_MAGIC), 0)
    except OSError as error:
        raise usage_error(f"{name}: cannot be read: {error.strerror}") from error
    if start.startswith(_ZIP):
        raise usage_error(f"{name}: is a .npz archive", "Save one array with numpy.save.")
    if start != _MAGIC:
        os.close(descriptor)
        return None
    fd_path = f"/proc/{os.getpid()}/fd/{descriptor}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # a shape whose size overflows
            mapped = np.load(fd_path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, OverflowError, RuntimeWarning) as error:
        raise usage_error(f"{name}: is not a complete .npy file of numbers: {error}") from error
    _check_dtype(mapped.dtype, name)
    assert isinstance(mapped, np.memmap)
    return MappedFile(name, fd_path, mapped.offset, mapped.reshape(-1, order="A"))


def _map_floats(descriptor: int, name: str) -> MappedFile:
    """Map a file of float64 values in native byte order; its descriptor must stay open."""
    fd_path = f"/proc/{os.getpid()}/fd/{descriptor}"
    is_empty = not os.fstat(descriptor).st_size
    return MappedFile(name, fd_path, 0, np.zeros(0) if is_empty else np.memmap(fd_path, np.float64, "r"))


class SameHostToken:
    """Random bytes in an anonymous file of this process: a task that reads them at `path` is on the same host."""

    def __init__(self) -> None:
        self.value = os.urandom(16)
        descriptor = libc.memfd_create("tfcluster")
        os.write(descriptor, self.value)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"


def _check_dtype(dtype: np.dtype[Any], name: str) -> None:
    if dtype.kind == "c":
        hint = "Save the real part, the imaginary part or the modulus, and take the mean of that."
        raise usage_error(f"{name}: has complex numbers ({dtype})", hint)
    if dtype.kind not in "biuf":
        what = "a structured type" if dtype.fields else f"the type {dtype}"
        raise usage_error(f"{name}: has {what}, not numbers")


def _write_floats(source: Path, name: str, column: str | None, target: BinaryIO) -> list[str]:
    """Convert a text file to float64 values in native byte order; return notes for the user about how it was parsed.

    Blank lines are skipped, and so is the header of a CSV file. Anything else in the place of a number is an error, so
    that no data is dropped silently.
    """
    values, notes = (_parse_lines(source, name), []) if column is None else _parse_column(source, name, column)
    while block := array("d", islice(values, settings.TEXT_BLOCK_NUMBERS)):
        block.tofile(target)
    target.flush()
    return notes


def _parse_lines(source: Path, name: str) -> Iterator[float]:
    with source.open(encoding="utf-8-sig", newline="") as lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    hint = "Choose a column with --column INDEX or NAME." if "," in line else ""
                    yield _parse_number(line, f"{name}:{number}", hint)
        except UnicodeDecodeError as error:
            raise usage_error(f"{name}: is neither UTF-8 text nor a .npy file") from error


def _parse_column(source: Path, name: str, column: str) -> tuple[Iterator[float], list[str]]:
    rows = read_rows(source, name)
    position, first = next(rows, (name, []))
    if not first:
        return iter(()), []
    index, is_header = _find_column(first, column, position)
    notes = []
    if not is_header and not all(find_numbers(first)):
        notes.append(
            f"{position}: {first[index].strip()} was counted as a number, in a line that has words too; "
            "if the line is a heading, give --column the name"
        )
    numbers = rows if is_header else chain([(position, first)], rows)
    return (_parse_number(row[index], position) for position, row in numbers), notes


def _find_column(first: list[str], column: str, position: str) -> tuple[int, bool]:
    """Find a column in the first line; return its index, and whether the line is a header with names.

    For a column by index, from 0 on, the line is a header unless the column has a number in it, see `find_numbers`. An
    index is never taken for the name of another column: a number in a line that also contains words would be lost.
    """
    names, numbers = [each.strip() for each in first], find_numbers(first)
    if column.isdecimal() and int(column) < len(names):
        return int(column), not numbers[int(column)]
    is_header = not all(numbers) or not has_finite_number(first)
    if is_header and column in names:
        return names.index(column), True
    raise usage_error(
        f"{position}: has no column {column!r}",
        f"The columns are {', '.join(names[:20])}; by number, 0 to {len(names) - 1}."
        if is_header
        else f"The first line has no names; by number, the columns are 0 to {len(names) - 1}.",
    )


def _parse_number(field: str, position: str, hint: str = "") -> float:
    number = parse_number(field)
    if number is None:
        raise usage_error(f"{position}: {field.strip()[:40]!r} is not a number", hint)
    return number
