"""Convert text (one number per line, or a column of a CSV file) to a file of float64 values that tasks can mmap."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.csv_rows import is_number, read_rows


def write_floats(source: Path, name: str, column: str | None, target: BinaryIO) -> list[str]:
    """Convert a text file.

    Blank lines are skipped, and so is the header of a CSV file. Anything else in the place of a number is an error, so
    that no data is dropped silently.

    Args:
        source: Path of the text, in UTF-8.
        name: The user's name for the text.
        column: The column's index from 0 on, or its name; None for a file with one number per line.
        target: The file to write to, as float64 values in native byte order.

    Returns:
        Notes for the user about how the file was parsed.

    Raises:
        ClusterError: A line has no number in the column, or does not have as many columns as the first line; or the
            file is not text in UTF-8.
        OSError: The source cannot be read, or the target cannot be written.
    """
    values, notes = (_lines(source, name), []) if column is None else _column(source, name, column)
    while block := array("d", islice(values, settings.TEXT_BLOCK_NUMBERS)):
        block.tofile(target)
    target.flush()
    return notes


def _lines(source: Path, name: str) -> Iterator[float]:
    with source.open(encoding="utf-8-sig", newline="") as lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    hint = "Choose a column with --column INDEX or NAME." if "," in line else ""
                    yield _number(line, f"{name}:{number}", hint)
        except UnicodeDecodeError as error:
            raise _bad(f"{name}: is neither text in UTF-8 nor a .npy file") from error


def _column(source: Path, name: str, column: str) -> tuple[Iterator[float], list[str]]:
    """Return an iterator over the numbers of a column, and notes for the user."""
    rows = read_rows(source, name)
    where, first = next(rows, (name, []))
    if not first:
        return iter(()), []
    at, is_heading = _find_column(first, column, where)
    notes = []
    if not is_heading and not all(is_number(field) for field in first):
        notes.append(
            f"{where}: {first[at].strip()} was counted as a number, in a line that has words too; "
            "if the line is a heading, give --column the name"
        )
    numbers = rows if is_heading else chain([(where, first)], rows)
    return (_number(row[at], where) for where, row in numbers), notes


def _find_column(first: list[str], column: str, where: str) -> tuple[int, bool]:
    """Find a column in the first line.

    If the column is given by index, the line is a header unless the column contains a number in it. An index is never
    taken for the name of another column. Otherwise a number in a line that also contains words would be lost.

    Args:
        first: The fields of the first line.
        column: The column's index from 0 on, or its name.
        where: Position of the line, as `NAME:LINE`.

    Returns:
        The index of the column, and whether the first line is a header with names.

    Raises:
        ClusterError: There is no such column.
    """
    names = [each.strip() for each in first]
    if column.isdecimal() and int(column) < len(names):
        return int(column), not is_number(names[int(column)])
    is_heading = not all(is_number(name) for name in names)
    if is_heading and column in names:
        return names.index(column), True
    raise _bad(
        f"{where}: has no column {column!r}",
        f"The columns are {', '.join(names[:20])}; by number, 0 to {len(names) - 1}."
        if is_heading
        else f"The first line has no names; by number, the columns are 0 to {len(names) - 1}.",
    )


def _number(field: str, where: str, hint: str = "") -> float:
    try:
        return float(field)
    except ValueError:
        raise _bad(f"{where}: {field.strip()[:40]!r} is not a number", hint) from None


def _bad(message: str, hint: str = "") -> ClusterError:
    return ClusterError(message, hint=hint, exit_code=ExitCode.USAGE)
