"""Numbers from text, one a line or a column of a CSV file, written as float64 values that tasks can map."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from tfcluster.errors import ClusterError, ExitCode

# Numbers converted at once: few enough that memory does not matter, enough that the calls do not.
_AT_ONCE = 1 << 16


def write_floats(source: Path, name: str, column: str | None, target: BinaryIO) -> None:
    """Convert a text file.

    Blank lines are passed over. Anything else that is not a number where one should be is an error: nothing is left
    out silently.

    Args:
        source: The text, in UTF-8.
        name: What the user calls it.
        column: The column's name, or its index from 0 on; None for a file with one number a line.
        target: The file to write to: float64 values in this machine's order.

    Raises:
        ClusterError: A line has no number there, or another number of columns than the first; or the text cannot be
            read or is none.
        OSError: The target cannot be written.
    """
    try:
        with source.open(encoding="utf-8-sig", newline="") as lines:
            values = _lines(lines, name) if column is None else _column(lines, name, column)
            while block := array("d", islice(values, _AT_ONCE)):
                block.tofile(target)
            target.flush()
    except UnicodeDecodeError as error:
        raise _bad(f"{name}: is neither text in UTF-8 nor a .npy file") from error
    except csv.Error as error:
        raise _bad(f"{name}: is no CSV file: {error}") from error


def _lines(lines: TextIO, name: str) -> Iterator[float]:
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            yield float(line)
        except ValueError:
            if line.strip():
                raise _no_number(line.strip(), f"{name}:{number}", line.count(",")) from None


def _column(lines: TextIO, name: str, column: str) -> Iterator[float]:
    rows = csv.reader(lines)
    first = next((row for row in rows if row), [])
    at, is_header = _find_column(first, column, f"{name}:{rows.line_num}")
    if first and not is_header:
        yield _number(first[at], f"{name}:{rows.line_num}")
    for row in rows:
        if not row:
            continue
        where = f"{name}:{rows.line_num}"
        if len(row) != len(first):
            raise _bad(f"{where}: has {len(row)} columns, the first line has {len(first)}")
        yield _number(row[at], where)


def _find_column(first: list[str], column: str, where: str) -> tuple[int, bool]:
    """The index of a column, and whether the first line is one of names: it is, unless all in it are numbers."""
    if not first:
        return 0, False
    names = [each.strip() for each in first]
    is_header = not all(_is_number(name) for name in names)
    if is_header and column in names:
        return names.index(column), True
    if column.isdecimal() and int(column) < len(names):
        return int(column), is_header
    raise _bad(
        f"{where}: has no column {column!r}",
        f"The columns are {', '.join(names[:20])}; by number, 0 to {len(names) - 1}."
        if is_header
        else f"The first line has no names; by number, the columns are 0 to {len(names) - 1}.",
    )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _number(field: str, where: str) -> float:
    try:
        return float(field)
    except ValueError:
        raise _no_number(field.strip(), where, 0) from None


def _no_number(text: str, where: str, commas: int) -> ClusterError:
    hint = "Choose a column with --column NAME or INDEX." if commas else ""
    return _bad(f"{where}: {text[:40]!r} is not a number", hint)


def _bad(message: str, hint: str = "") -> ClusterError:
    return ClusterError(message, hint=hint, exit_code=ExitCode.USAGE)
